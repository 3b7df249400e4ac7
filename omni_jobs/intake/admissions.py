"""``Admissions``: the requests of one API process are parsed and admitted, each in its lane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from omni_jobs.errors import InvalidRequest, ModelMissing, OmniJobsError
from omni_jobs.intake.lanes import Lanes
from omni_jobs.intake.renderer_loads import RendererLoads
from omni_jobs.intake.submit_request import SubmitRequest
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.prompts import Renderers
from omni_jobs.requests import AdmittedRequest, ParsedRequest, admit, parse
from omni_jobs.settings import Settings


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
    """Admits requests. For one event loop."""

    def __init__(self, settings: Settings, pipelines: Pipelines, renderers: Renderers, wall: MediaWall) -> None:
        """``pipelines``: those that take jobs."""
        self._settings = settings
        self._pipelines = pipelines
        self._renderers = renderers
        self._wall = wall
        self._lanes = Lanes(wall.capacity)
        self._loads = RendererLoads(renderers, pipelines)

    async def admit(self, requests: Sequence[SubmitRequest]) -> list[AdmittedRequest | OmniJobsError]:
        """Check requests whole. Return an admitted request or the error of the refusal for each, in their order.

        Texts are admitted together. Each request with media is admitted apart, because decoders take seconds. Raises
        DecodersUnavailable for a single request with media while all decoders are taken.
        """
        parsed = await self._lanes.parse(requests, partial(self._parse, requests))
        candidates = [each for each in parsed if isinstance(each, _Candidate)]
        missing = await self._load_renderers({candidate.pipeline for candidate in candidates})
        texts = [candidate for candidate in candidates if not candidate.has_media]
        admitted_texts = iter(await self._admit_texts(texts, missing) if texts else ())
        admitted: list[AdmittedRequest | OmniJobsError] = []
        for each in parsed:
            if isinstance(each, OmniJobsError):
                admitted.append(each)
            elif each.has_media:
                admit_one = partial(self._admit, [each], missing)
                admitted += await self._lanes.admit_media(admit_one, waits=len(requests) > 1)
            else:
                admitted.append(next(admitted_texts))
        return admitted

    def _parse(self, requests: Sequence[SubmitRequest]) -> list[_Candidate | OmniJobsError]:
        parsed: list[_Candidate | OmniJobsError] = []
        for request in requests:
            try:
                parsed.append(_Candidate(request, parse(request.body, self._settings)))
            except OmniJobsError as error:
                parsed.append(without_frames(error))
        return parsed

    async def _load_renderers(self, pipelines: set[str]) -> dict[str, OmniJobsError]:
        """Wait until the pipelines' renderers are loaded. Return the errors of those that cannot be."""
        missing: dict[str, OmniJobsError] = {}
        for pipeline in pipelines:
            try:
                await self._loads.ready(pipeline)
            except ModelMissing as error:
                missing[pipeline] = without_frames(error)
        return missing

    async def _admit_texts(
        self, texts: Sequence[_Candidate], missing: Mapping[str, OmniJobsError]
    ) -> list[AdmittedRequest | OmniJobsError]:
        pipelines = (self._pipelines.get(candidate.pipeline) for candidate in texts)
        tokenizes = any(pipeline is not None and pipeline.model is not None for pipeline in pipelines)
        requests = [candidate.request for candidate in texts]
        return await self._lanes.admit(requests, partial(self._admit, texts, missing), tokenizes=tokenizes)

    def _admit(
        self, candidates: Sequence[_Candidate], missing: Mapping[str, OmniJobsError]
    ) -> list[AdmittedRequest | OmniJobsError]:
        admitted: list[AdmittedRequest | OmniJobsError] = []
        for candidate in candidates:
            try:
                admitted.append(missing.get(candidate.pipeline) or self._admit_one(candidate))
            except OmniJobsError as error:
                admitted.append(without_frames(error))
        return admitted

    def _admit_one(self, candidate: _Candidate) -> AdmittedRequest:
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


def without_frames(error: OmniJobsError) -> OmniJobsError:
    """Return the error, fit to be kept in a list.

    The frames of its traceback, and of the error that it was raised for, lead to that list. Such a reference cycle
    would keep the whole bulk in memory until the garbage collector comes.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
