"""``shown_job``: what the pages that show one job give to their templates."""

import json
from collections.abc import Mapping
from typing import Any, Final

from omni_jobs.dashboard.templates import shortened
from omni_jobs.http.browsers import SHOWN_TYPES
from omni_jobs.jobs import MOST_TEXT
from omni_jobs.states import StageRunState
from omni_jobs.views import ArtifactView, JobView, StageRunView

LONGEST_TEXT: Final = 20_000
"""The characters of a text that a page shows."""


def shown_job(job: JobView, *, with_text: bool) -> Mapping[str, Any]:
    """Return a job for a template. ``with_text``: also the text of stages that run; else the page has it by events."""
    return {
        "job": job,
        "with_text": with_text,
        "made": _made(job),
        "kind_of": _kind_of,
        "text_places": _text_places(job) if with_text else "",
    }


def shown_json(value: Any) -> str:
    """Return a value as JSON of bounded length."""
    return shortened(json.dumps(value, ensure_ascii=False, indent=2), LONGEST_TEXT)


def _made(job: JobView) -> Mapping[str, str]:
    """Return what a job has made so far, by name, each as a text of bounded length."""
    return {
        name: shortened(value, LONGEST_TEXT) if isinstance(value, str) else shown_json(value)
        for name, value in job.made.items()
    }


def _text_places(job: JobView) -> str:
    """Return the texts that the page has of stages that run, as ``text_from`` of the event stream names them.

    Of a text that is so long that its beginning is cut off, the stream tells all.
    """
    return ",".join(
        f"{stage.name}:{stage.attempt}:{len(_text_of(stage))}"
        for stage in job.stages
        if stage.status is StageRunState.RUNNING and 0 < len(_text_of(stage)) < MOST_TEXT
    )


def _text_of(stage: StageRunView) -> str:
    return "" if stage.progress is None else stage.progress.text or ""


def _kind_of(artifact: ArtifactView) -> str:
    """Return how a page shows an artifact: audio, image or video; "" for a link alone."""
    return artifact.media_type.partition("/")[0] if artifact.media_type in SHOWN_TYPES else ""
