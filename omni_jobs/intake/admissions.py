"""``Admissions``: parses and admits the requests that come to one API process, each in its lane."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import InvalidRequest, ModelMissing, OmniJobsError
from omni_jobs.intake.lanes import Lanes
from omni_jobs.intake.submit_request import SubmitRequest
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.prompts import Renderers
from omni_jobs.requests import AdmittedRequest, ParsedRequest, admit, parse
from omni_jobs.settings import Settings

T = TypeVar("T")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A request whose body has been parsed."""

    request: SubmitRequest
    body: ParsedRequest

    @property
    def pipeline(self) -> str:
        return self.body.request.model

    @property
    def has_media(self) -> bool:
        return not self.body.is_text and self.body.request.messages is not None


class Admissions:
    """Parses requests and admits them to their pipelines. For one event loop."""

    def __init__(self, settings: Settings, pipelines: Pipelines, renderers: Renderers, wall: MediaWall) -> None:
        """Prepare to admit requests for these pipelines; others are refused. Renderers are loaded when first needed."""
        self._settings = settings
        self._pipelines = pipelines
        self._renderers = renderers
        self._wall = wall
        self._lanes = Lanes(wall.capacity)
        self._loads: dict[str, asyncio.Future[object]] = {}  # of renderers, by pipeline
        self._load_threads = CapacityLimiter(max(1, len(pipelines)))  # so that no load waits for another pipeline's

    async def admit(self, requests: Sequence[SubmitRequest]) -> list[AdmittedRequest | OmniJobsError]:
        """Parse and check requests. Return an admitted request or the error of the refusal for each, in their order.

        Texts are admitted together. Each request with media is admitted apart, because decoders take seconds. Raises
        DecodersUnavailable if a single request has media and too many requests wait for decoders already.
        """
        parsed = await self._lanes.parse(requests, partial(_results_of, self._parse, requests))
        candidates = [each for each in parsed if isinstance(each, _Candidate)]
        missing = await self._load_renderers({candidate.pipeline for candidate in candidates})
        admit_one = partial(self._admit, missing)
        texts = [candidate for candidate in candidates if not candidate.has_media]
        admitted_texts = iter(await self._admit_texts(texts, partial(_results_of, admit_one, texts)) if texts else ())
        admitted: list[AdmittedRequest | OmniJobsError] = []
        for each in parsed:
            if isinstance(each, OmniJobsError):
                admitted.append(each)
            elif each.has_media:
                admit_alone = partial(_results_of, admit_one, [each])
                admitted += await self._lanes.admit_media(admit_alone, waits=len(requests) > 1)
            else:
                admitted.append(next(admitted_texts))
        return admitted

    def _parse(self, request: SubmitRequest) -> _Candidate:
        return _Candidate(request, parse(request.body, self._settings))

    async def _load_renderers(self, pipelines: set[str]) -> dict[str, OmniJobsError]:
        """Wait until the pipelines' renderers are loaded. Return the errors of those that cannot be.

        One load serves all requests that wait for it.
        """
        missing: dict[str, OmniJobsError] = {}
        for name in pipelines:
            pipeline = self._pipelines.get(name)
            if pipeline is None or self._renderers.are_loaded(pipeline):
                continue
            if name not in self._loads:
                load = run_sync(self._renderers.of, pipeline, limiter=self._load_threads, abandon_on_cancel=True)
                self._loads[name] = asyncio.ensure_future(load)
                self._loads[name].add_done_callback(partial(self._forget_load, name))
            try:
                await asyncio.shield(self._loads[name])  # a request that is cancelled takes the load from nobody
            except ModelMissing as error:
                missing[name] = without_frames(error)
        return missing

    def _forget_load(self, name: str, load: asyncio.Future[object]) -> None:
        del self._loads[name]
        if not load.cancelled():
            load.exception()  # retrieved, because everyone who waited may have left

    async def _admit_texts(self, texts: Sequence[_Candidate], admit_all: Callable[[], T]) -> T:
        pipelines = (self._pipelines.get(candidate.pipeline) for candidate in texts)
        tokenizes = any(pipeline is not None and pipeline.model is not None for pipeline in pipelines)
        return await self._lanes.admit([candidate.request for candidate in texts], admit_all, tokenizes=tokenizes)

    def _admit(self, missing: Mapping[str, OmniJobsError], candidate: _Candidate) -> AdmittedRequest:
        if candidate.pipeline in missing:
            raise missing[candidate.pipeline]
        admitted = admit(
            candidate.body,
            self._pipelines,
            self._settings,
            self._renderers,
            prompt_embeds=candidate.request.prompt_embeds,
            wall=self._wall,
        )
        if admitted.expires_at is not None and candidate.request.expires_in_s is not None:
            raise InvalidRequest("given, and Cancel-After as well", field="expires_at")
        return admitted


def _results_of(call: Callable[[T], Result], items: Sequence[T]) -> list[Result | OmniJobsError]:
    """Return the result of ``call`` for each item, or the OmniJobsError that it raised."""
    results: list[Result | OmniJobsError] = []
    for item in items:
        try:
            results.append(call(item))
        except OmniJobsError as error:
            results.append(without_frames(error))
    return results


def without_frames(error: OmniJobsError) -> OmniJobsError:
    """Remove the traceback and the cause of an error that is kept in a list, and return the error.

    The frames of a traceback refer to that list. Such a reference cycle would keep the whole bulk in memory until the
    garbage collector comes.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
