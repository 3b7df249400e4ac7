"""``Admissions``: parses and admits the requests that come to one API process, each in its lane."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from omni_jobs.errors import InvalidRequest, MissingScope, ModelMissing, OmniJobsError, PluginBroken
from omni_jobs.intake.lanes import Lanes
from omni_jobs.intake.submit_request import SubmitRequest
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.priority import Priority
from omni_jobs.prompts import HANGS_S, Renderers
from omni_jobs.requests import AdmittedRequest, ParsedRequest, admit, parse
from omni_jobs.settings import Settings

T = TypeVar("T")
Result = TypeVar("Result")

_Candidate = tuple[SubmitRequest, ParsedRequest]  # a request, and its body as parsed


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

    async def admit(
        self, requests: Sequence[SubmitRequest], *, wait_for_decoders: bool
    ) -> list[AdmittedRequest | OmniJobsError]:
        """Parse and check requests. Return an admitted request or the error of the refusal for each, in their order.

        Texts are admitted together. Each request with media is admitted apart, because decoders take seconds. Raises
        DecodersUnavailable if too many requests wait for decoders already, unless these ``wait_for_decoders``.
        """
        parsed = await self._lanes.run_parsing(requests, partial(_results_of, self._parse, requests))
        pairs = list(zip(requests, parsed, strict=True))
        candidates = [(request, body) for request, body in pairs if isinstance(body, ParsedRequest)]
        missing = await self._load_renderers({body.request.model for _, body in candidates})
        admit_one = partial(self._admit, missing)
        texts = [(request, body) for request, body in candidates if not body.has_media]
        admitted_texts = iter(await self._admit_texts(texts, partial(_results_of, admit_one, texts)) if texts else ())
        admitted: list[AdmittedRequest | OmniJobsError] = []
        for request, body in pairs:
            if isinstance(body, OmniJobsError):
                admitted.append(body)
            elif body.has_media:
                admit_alone = partial(_results_of, admit_one, [(request, body)])
                admitted += await self._lanes.run_decoding(admit_alone, waits=wait_for_decoders)
            else:
                admitted.append(next(admitted_texts))
        return admitted

    def _parse(self, request: SubmitRequest) -> ParsedRequest:
        return parse(request.body, self._settings)

    async def _load_renderers(self, pipelines: set[str]) -> dict[str, OmniJobsError]:
        """Wait until the pipelines' renderers are loaded. Return the errors of those that cannot be.

        One load serves all requests that wait for it.
        """
        missing: dict[str, OmniJobsError] = {}
        for name in pipelines:
            pipeline = self._pipelines.get(name)
            if pipeline is None or self._pipelines.broken(name) or self._renderers.are_loaded(pipeline):
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

    async def _admit_texts(self, texts: Sequence[_Candidate], admit_all: Callable[[], T]) -> T:
        pipelines = (self._pipelines.get(body.request.model) for _, body in texts)
        tokenizes = any(pipeline is not None and pipeline.reader is not None for pipeline in pipelines)
        return await self._lanes.run_admission([request for request, _ in texts], admit_all, tokenizes=tokenizes)

    def _admit(self, missing: Mapping[str, OmniJobsError], candidate: _Candidate) -> AdmittedRequest:
        request, body = candidate
        if body.request.model in missing:
            raise missing[body.request.model]
        admitted = admit(
            body,
            self._pipelines,
            self._settings,
            self._renderers,
            prompt_embeds=request.prompt_embeds,
            wall=self._wall,
        )
        if admitted.expires_at is not None and request.expires_in_s is not None:
            raise InvalidRequest("given, and Cancel-After as well", field="expires_at")
        if admitted.priority is Priority.HIGH and not request.may_be_high:
            raise MissingScope("high takes a key with the scope priority", field="priority")
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
