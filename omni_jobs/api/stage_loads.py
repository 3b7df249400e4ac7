"""``stage_loads``: how loaded each stage is; and what a page shows of many jobs, so that none of it is long."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from omni_jobs.http.browsers import SHOWN_TYPES
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.states import StageRunState
from omni_jobs.views import ArtifactView, Counts, StageLoad, StageRunView, WorkerView

_LARGEST_PICTURE_BYTES: Final = 16 << 20  # a page has those of many jobs
_LARGEST_PREVIEW: Final = 64 << 10  # characters of its data URL, because each refresh of a page brings it again


def stage_loads(
    pipelines: Mapping[str, Pipeline],
    counts: Counts,
    workers: Sequence[WorkerView],
    paused: Collection[tuple[str, str]],
    down: Mapping[tuple[str, str], int],
) -> list[StageLoad]:
    """Return the load of each stage of the served pipelines, and of stages with stage runs whose pipeline is gone.

    ``down``: how many slots of a stage have an engine that is down.
    """
    runs: dict[tuple[str, str], dict[StageRunState, int]] = defaultdict(dict)
    for count in counts.stage_runs:
        of_stage = runs[count.pipeline, count.stage]
        of_stage[count.state] = of_stage.get(count.state, 0) + count.count
    served = [(pipeline.name, stage) for pipeline in pipelines.values() for stage in pipeline.stages]
    of_stages: dict[tuple[str, str], list[WorkerView]] = defaultdict(list)
    drained: dict[tuple[str, str], list[WorkerView]] = defaultdict(list)
    for worker in workers:
        (of_stages if worker.drained_at is None else drained)[worker.pipeline, worker.stage].append(worker)
    return [
        StageLoad(
            pipeline=pipeline,
            stage=stage,
            pending=runs[pipeline, stage].get(StageRunState.PENDING, 0),
            queued=runs[pipeline, stage].get(StageRunState.QUEUED, 0),
            running=runs[pipeline, stage].get(StageRunState.RUNNING, 0),
            workers=len(of_stages[pipeline, stage]),
            paused=(pipeline, stage) in paused,
            slots=sum(worker.slots for worker in of_stages[pipeline, stage])
            + sum(worker.running for worker in drained[pipeline, stage]),
            drained=len(drained[pipeline, stage]),
            down=down.get((pipeline, stage), 0),
        )
        for pipeline, stage in dict.fromkeys([*served, *runs])
    ]


def without_long_progress(stage: StageRunView) -> StageRunView:
    """Return a stage run without what may be long in its progress: its text, and a preview that is large."""
    if stage.progress is None:
        return stage
    picture = stage.progress.picture
    shown = picture if picture is not None and len(picture) <= _LARGEST_PREVIEW else None
    return stage.model_copy(update={"progress": stage.progress.model_copy(update={"text": None, "picture": shown})})


def is_shown_picture(artifact: ArtifactView) -> bool:
    """Return whether a page shows an artifact: as all pictures in which nothing runs, unless it is very large."""
    is_image = artifact.media_type.startswith("image/") and artifact.media_type in SHOWN_TYPES
    return is_image and artifact.bytes <= _LARGEST_PICTURE_BYTES
