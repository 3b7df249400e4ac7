"""``stage_loads``: how loaded each stage is; and what a page shows of many jobs, so that none of it is long."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from omni_jobs.http.browsers import SHOWN_TYPES
from omni_jobs.identity import PipelineId
from omni_jobs.jobs import DownStage, KnownVersion, paused_since
from omni_jobs.pipelines.loader import Pipelines, version_order
from omni_jobs.states import StageRunState
from omni_jobs.views import ArtifactView, Counts, StageLoad, StageRunView, WorkerView

_LARGEST_PICTURE_BYTES: Final = 16 << 20  # a page has those of many jobs
_LARGEST_PREVIEW: Final = 64 << 10  # characters of its data URL, because each refresh of a page brings it again


def stage_loads(
    pipelines: Pipelines,
    counts: Counts,
    workers: Sequence[WorkerView],
    paused: Mapping[tuple[str, str], float],
    down: Mapping[DownStage, int],
    known: Sequence[KnownVersion],
) -> list[StageLoad]:
    """Return the load of each stage of the served pipelines, and of stages with stage runs whose pipeline is gone.

    Where several versions of a pipeline have workers or stage runs, each of these has loads of its own, the newest
    first. ``down``: how many slots of a stage have an engine that is down, by version. ``known``: the versions that SQL
    knows, with their numbers. ``paused``: as ``Jobs.paused_stages`` returns it.
    """
    at_work = _AtWork(counts, workers, down)
    numbers = at_work.numbers | {each.pipeline: each.version for each in known}
    draining = {each.pipeline for each in known if each.draining_at is not None}
    served: dict[str, list[str]] = defaultdict(list)
    for pipeline in pipelines.values():
        served[pipeline.name] += pipeline.stages

    def counted(load: StageLoad) -> Sequence[str]:
        """Return the numbers of the versions that a load counts; where none is at work, of those that are served."""
        if load.version is not None:
            return [load.version]
        its = [numbers.get(version, "") for version in at_work.versions_of(load.pipeline)]
        return its or [each.version for each in pipelines.versions(load.pipeline)]

    loads: list[StageLoad] = []
    for name in dict.fromkeys([*served, *(version.name for version, _ in at_work.runs)]):
        versions = at_work.versions_of(name)
        if len(versions) < 2:
            loads += at_work.loads(name, versions, served.get(name, ()))
            continue
        for version in sorted(versions, key=lambda each: version_order(numbers.get(each, "")), reverse=True):
            own = pipelines.of(version)
            of_version = at_work.loads(name, [version], () if own is None else list(own.stages))
            more = {"version": numbers.get(version, version.digest[:16]), "draining": version in draining}
            loads += [load.model_copy(update=more) for load in of_version]
    return [
        load.model_copy(
            update={
                "paused": all(
                    paused_since(paused, load.pipeline, each, load.stage) is not None for each in counted(load)
                )
            }
        )
        for load in loads
    ]


class _AtWork:
    """The workers, and the stage runs that have not ended, by version and stage."""

    def __init__(self, counts: Counts, workers: Sequence[WorkerView], down: Mapping[DownStage, int]) -> None:
        self._down = down
        self.runs: dict[tuple[PipelineId, str], Counter[StageRunState]] = defaultdict(Counter)
        self.numbers: dict[PipelineId, str] = {}  # of the versions that have workers
        self._crews: dict[tuple[PipelineId, str], list[WorkerView]] = defaultdict(list)
        for count in counts.stage_runs:
            self.runs[PipelineId(count.pipeline, count.pipeline_digest), count.stage][count.state] += count.count
        for worker in workers:
            version = PipelineId(worker.pipeline, worker.pipeline_digest)
            self.numbers[version] = worker.pipeline_version
            self._crews[version, worker.stage].append(worker)

    def versions_of(self, name: str) -> list[PipelineId]:
        """Return the versions of a pipeline that have workers or stage runs."""
        return list(dict.fromkeys(version for version, _ in [*self.runs, *self._crews] if version.name == name))

    def loads(self, name: str, versions: Sequence[PipelineId], stages: Sequence[str]) -> list[StageLoad]:
        """Return the loads that these versions of a pipeline have together, of these stages first."""
        others = [stage for version, stage in [*self.runs, *self._crews] if version in versions]
        return [self._load(name, versions, stage) for stage in dict.fromkeys([*stages, *others])]

    def _load(self, name: str, versions: Sequence[PipelineId], stage: str) -> StageLoad:
        runs = sum((self.runs.get((version, stage), Counter()) for version in versions), Counter[StageRunState]())
        crew = [worker for version in versions for worker in self._crews.get((version, stage), ())]
        claiming = [worker for worker in crew if worker.drained_at is None]
        return StageLoad(
            pipeline=name,
            stage=stage,
            pending=runs[StageRunState.PENDING],
            queued=runs[StageRunState.QUEUED],
            running=runs[StageRunState.RUNNING],
            workers=len(claiming),
            slots=sum(worker.slots if worker.drained_at is None else worker.running for worker in crew),
            paused=False,
            drained=len(crew) - len(claiming),
            down=self._down_slots(name, versions, stage),
        )

    def _down_slots(self, name: str, versions: Sequence[PipelineId], stage: str) -> int:
        """Return how many engines of these versions are down; where none is at work, of all."""
        digests = {None, *(version.digest for version in versions)}
        return sum(
            slots
            for each, slots in self._down.items()
            if (each.pipeline, each.stage) == (name, stage) and (not versions or each.digest in digests)
        )


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
