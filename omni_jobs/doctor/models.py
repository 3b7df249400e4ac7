"""The pipelines that are served: their files, their checkpoints on this host, and what these want of a card."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from omni_jobs.cards import CardNeed, cards_of_host
from omni_jobs.database.database import Database
from omni_jobs.doctor.finding import Finding
from omni_jobs.doctor.room import lack, lack_together, needs_of
from omni_jobs.errors import ConfigError, DatabaseUnavailable, OmniJobsError, VersionChanged
from omni_jobs.jobs import Jobs
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.prompts.renderers import Renderers, checkpoint_of
from omni_jobs.settings import Settings

_NAME_IT = "name its checkpoint (OMNI_JOBS_MODELS), or the pipelines that are served (OMNI_JOBS_PIPELINES)"
_RAISE_IT = "raise `version` in its file, or put the old file back: docs/operations/change-a-pipeline.md"
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.onnx")


class _Room(NamedTuple):
    """What a pipeline's stages take of a card, and the bytes of each card; no cards: no stage runs on one here."""

    needs: Sequence[CardNeed]
    cards: Sequence[int]


def pipelines(settings: Settings) -> Iterator[Finding]:
    """Look at each pipeline. Raises ConfigError for a file with which no process would start."""
    served = load_pipelines(settings.resolved_stage_configs).served(settings.pipelines)
    renderers = Renderers(settings)
    cards: list[int] = []
    with suppress(ConfigError):  # a driver that fails is what the examination of the cards finds
        cards = [card.total_bytes for card in cards_of_host()]
    changed = _changed(served, settings)
    needs: dict[str, list[CardNeed]] = {}
    for name in served:
        if (error := changed.get(served[name].reference)) is not None:
            yield Finding(about=name, state="error", message=error.message, remedy=_RAISE_IT)
        else:
            if cards and served.broken(name) is None:
                needs[name] = needs_of(served[name], settings.models)
            yield _of_pipeline(served, name, renderers, settings, _Room(needs.get(name, ()), cards))
    yield from lack_together(needs, cards)


def _changed(served: Pipelines, settings: Settings) -> dict[str, VersionChanged]:
    """Return why a server would refuse the jobs of those, by NAME@VERSION, whose files are others than the database's.

    Nothing is written. Where the database does not answer, which its own examination finds, none is known.
    """
    found: dict[str, VersionChanged] = {}
    with (
        suppress(ConfigError, DatabaseUnavailable),
        closing(Database(settings.resolved_database_url, retry_for_s=0)) as db,
    ):
        db.check()  # another schema may lack what is asked for here
        jobs = Jobs(db)
        for known in jobs.known_versions():
            pipeline = served.find(known.reference)
            if pipeline is None or served.broken(known.reference) or pipeline.id == known.pipeline:
                continue
            if known.pipeline in jobs.version_work():  # otherwise the new file takes its place
                found[known.reference] = known.changed_to(pipeline.id)
    return found


def _of_pipeline(served: Pipelines, name: str, renderers: Renderers, settings: Settings, room: _Room) -> Finding:
    pipeline = served[name]
    broken = served.broken(name) or served.refusal(pipeline)
    if broken is not None:
        return Finding(about=name, state="error", message=str(broken), remedy="correct the file, or the plug-in")
    weights = _weights(pipeline, settings.models)
    try:
        renderers.of(pipeline)
    except OmniJobsError as error:
        is_asked_for = name in (settings.pipelines or ()) or name in settings.models  # else all files are served
        return Finding(about=name, state="error" if is_asked_for else "warning", message=str(error), remedy=_NAME_IT)
    lacking = [stage for stage, size in weights.items() if size is None]
    if lacking:
        message = f"this host has no checkpoint of {', '.join(lacking)}, so none of its workers starts here"
        return Finding(about=name, state="warning", message=message, remedy=_NAME_IT)
    sizes = {stage: size for stage, size in weights.items() if size}
    parts = ", ".join(f"{stage} {_size(size)}" for stage, size in sizes.items())
    message = f"takes jobs; weights: {parts}" if parts else "takes jobs, without weights"
    found = lack(name, room.needs, room.cards, has_own_share=settings.gpu_memory_utilization is not None)
    if found is not None:
        return Finding(about=name, state="warning", message=found.message, remedy=found.remedy, figures=sizes)
    return Finding(about=name, state="ok", message=message, figures=sizes)


def _weights(pipeline: Pipeline, models: Mapping[str, Path]) -> dict[str, int | None]:
    """Return the bytes of the files of weights in the checkpoint of each stage that has a model; None: it is not here.

    Stages may share one.
    """
    found: dict[str, int | None] = {}
    for name, stage in pipeline.stages.items():
        if stage.model is not None:
            directory = checkpoint_of(pipeline, stage, models)
            is_here = directory is not None and directory.is_dir()
            found[name] = _bytes(directory) if is_here and directory is not None else None
    return found


def _bytes(directory: Path) -> int:
    size = 0
    for file in (each for kind in _WEIGHTS for each in directory.rglob(kind)):
        with suppress(FileNotFoundError):  # a link out of the directory, which dangles in a container
            size += file.stat().st_size
    return size


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
