"""``Admissions``: admits the submissions that come to one API process, each in its lane."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import ModelMissing, OmniJobsError, PluginBroken
from omni_jobs.intake.kept_errors import results_of, without_frames
from omni_jobs.intake.lanes import Lanes
from omni_jobs.media.wall import MediaWall
from omni_jobs.new_job import NewJob, Origin
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.prompts.renderers import HANGS_S, Renderers
from omni_jobs.requests import Fork, Submission, admit, admit_fork
from omni_jobs.settings import Settings


class Admissions:
    """Admits submissions to their pipelines. For one event loop."""

    def __init__(
        self, settings: Settings, pipelines: Pipelines, renderers: Renderers, wall: MediaWall, lanes: Lanes
    ) -> None:
        """Prepare to admit to these pipelines; others are refused. Renderers are loaded when first needed.

        ``lanes``: those in which the doors parse as well, because large bodies take turns whatever is done with them.
        """
        self._settings = settings
        self.pipelines = pipelines
        self._renderers = renderers
        self._wall = wall
        self._lanes = lanes
        self._loads: dict[str, asyncio.Future[object]] = {}  # of renderers, by pipeline
        self._load_threads = CapacityLimiter(max(1, len(pipelines)))  # so that no load waits for another pipeline's

    async def admit(
        self, given: Sequence[Submission | OmniJobsError], *, wait_for_decoders: bool
    ) -> list[NewJob | OmniJobsError]:
        """Check submissions. Return a job or the error of the refusal for each, in their order.

        An error in place of a submission is passed on. Texts are admitted together. Each submission with media is
        admitted apart, because decoders take seconds. Raises DecodersUnavailable if too many wait for decoders already,
        unless these ``wait_for_decoders``.
        """
        submissions = [each for each in given if isinstance(each, Submission)]
        missing = await self._load_renderers({each.request.model for each in submissions})
        with_media = [isinstance(each, Submission) and each.request.has_media for each in given]
        both = zip(given, with_media, strict=True)
        texts = [each for each, has_media in both if isinstance(each, Submission) and not has_media]
        admitted_texts = iter(await self._admit_texts(texts, missing) if texts else ())
        admitted: list[NewJob | OmniJobsError] = []
        for each, has_media in zip(given, with_media, strict=True):
            if isinstance(each, OmniJobsError):
                admitted.append(each)
            elif has_media:
                admit_alone = partial(results_of, partial(self._admit, missing), [each])
                admitted += await self._lanes.run_decoding(admit_alone, waits=wait_for_decoders)
            else:
                admitted.append(next(admitted_texts))
        return admitted

    async def admit_fork(self, submission: Submission, fork: Fork, origin: Origin) -> NewJob:
        """Check a fork of a job, whose whole request is ``submission``, and return its job. Raises the refusal."""
        missing = await self._load_renderers({submission.request.model})
        for error in missing.values():
            raise error
        parts = (submission, fork, origin, self.pipelines, self._settings, self._renderers)
        return await self._lanes.run_admission([submission], partial(admit_fork, *parts), tokenizes=True)

    async def _load_renderers(self, pipelines: set[str]) -> dict[str, OmniJobsError]:
        """Wait until the pipelines' renderers are loaded. Return the errors of those that cannot be.

        One load serves all requests that wait for it.
        """
        missing: dict[str, OmniJobsError] = {}
        for name in pipelines:
            pipeline = self.pipelines.find(name)
            if pipeline is None or self.pipelines.broken(name) or self._renderers.are_loaded(pipeline):
                continue  # ``admit`` refuses the first two
            if name not in self._loads:
                load = run_sync(self._renderers.of, pipeline, limiter=self._load_threads, abandon_on_cancel=True)
                self._loads[name] = asyncio.ensure_future(load)
                self._loads[name].add_done_callback(partial(self._forget_load, name))
            try:
                async with asyncio.timeout(2 * HANGS_S):
                    await asyncio.shield(self._loads[name])  # a request that is cancelled takes the load from nobody
            except TimeoutError:
                problem = f"the prompt renderer of {name} hangs: it has not been loaded for {2 * HANGS_S:g} s"
                missing[name] = PluginBroken(problem, field="model.family")
            except (ModelMissing, PluginBroken) as error:
                missing[name] = without_frames(error)
        return missing

    def _forget_load(self, name: str, load: asyncio.Future[object]) -> None:
        del self._loads[name]
        if not load.cancelled():
            load.exception()  # retrieved, because everyone who waited may have left

    async def _admit_texts(
        self, texts: Sequence[Submission], missing: Mapping[str, OmniJobsError]
    ) -> list[NewJob | OmniJobsError]:
        pipelines = (self.pipelines.find(each.request.model) for each in texts)
        tokenizes = any(pipeline is not None and pipeline.reader is not None for pipeline in pipelines)
        admit_all = partial(results_of, partial(self._admit, missing), texts)
        return await self._lanes.run_admission(texts, admit_all, tokenizes=tokenizes)

    def _admit(self, missing: Mapping[str, OmniJobsError], submission: Submission) -> NewJob:
        if submission.request.model in missing:
            raise missing[submission.request.model]
        return admit(submission, self.pipelines, self._settings, self._renderers, wall=self._wall)
