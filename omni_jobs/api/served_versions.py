"""``ServedVersions``: which versions of the pipelines that this server serves take new jobs, as SQL says it."""

from collections.abc import Callable
from functools import partial
from typing import Final

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import DatabaseUnavailable, OmniJobsError, VersionDraining
from omni_jobs.jobs import Jobs
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.watch.cached_value import CachedValue

_KEPT_S: Final = 1.0


class ServedVersions:
    """Tells SQL of the versions that this server serves, and its pipelines which of them take new jobs.

    For one event loop.
    """

    def __init__(self, jobs: Jobs, pipelines: Pipelines) -> None:
        """Begin without knowing any: all take jobs until the first ``refresh``."""
        self._jobs = jobs
        self._pipelines = pipelines
        self._threads = CapacityLimiter(1)
        run = partial(run_sync, limiter=self._threads)
        self._known = CachedValue(self.learn, run, least_kept_s=_KEPT_S, most_kept_s=_KEPT_S)

    async def refresh(self) -> None:
        """Learn which versions take new jobs, if what is known is older than a second.

        Requests that come while that is read go by what is known, which is two seconds old at the most, or wait. While
        SQL does not answer they go by what is known; whoever needs SQL says that.
        """
        try:
            await self._known.get()
        except DatabaseUnavailable:
            return

    def learn(self) -> None:
        """Read now which versions take new jobs. Call this on a thread. Raises DatabaseUnavailable."""
        served = {
            each.reference: each for each in self._pipelines.values() if self._pipelines.broken(each.reference) is None
        }
        known = {each.reference: each for each in self._jobs.known_versions()}
        news = [
            (each.id, each.version)
            for reference, each in served.items()
            if reference not in known or known[reference].pipeline != each.id
        ]
        if news:
            known = {each.reference: each for each in self._jobs.tell_versions(news)}
        refused: dict[str, Callable[[], OmniJobsError]] = {}
        for reference, pipeline in served.items():
            version = known[reference]
            if version.pipeline != pipeline.id:
                refused[reference] = partial(version.changed_to, pipeline.id)
            elif version.draining_at is not None:
                refused[reference] = partial(self._draining, pipeline)
        self._pipelines.refuse_new_jobs(refused)

    def _draining(self, pipeline: Pipeline) -> OmniJobsError:
        instead = self._pipelines.find(pipeline.name)
        is_taken = instead is not None and self._pipelines.takes_jobs(instead)
        hint = f"name {instead.reference}" if instead is not None and is_taken else "no other version takes any"
        text = f"version {pipeline.version} of {pipeline.name} is draining, and takes no new jobs: {hint}"
        return VersionDraining(text, field="model")
