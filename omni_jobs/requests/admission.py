"""Admission: a request is checked against its pipeline, whole, before anything of it is stored."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.plugins import named_object
from omni_jobs.priority import Priority
from omni_jobs.prompts import ParametersRenderer, PromptRenderer, Renderers, renderer_errors
from omni_jobs.requests.content import Contents, check_input_pixels, decode_base64, measure
from omni_jobs.requests.cost import estimated_tokens
from omni_jobs.requests.job_request import JobRequest, TextPart
from omni_jobs.requests.json_body import Long, canonical, parse_body
from omni_jobs.requests.options import modalities_of, outputs_of, parameters_of

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.pipelines.loader import Pipelines
    from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
    from omni_jobs.settings import Settings


@dataclass(frozen=True, slots=True)
class Media:
    """One medium of a request, or the file of its prompt embeddings: its bytes as the client encoded them.

    media_type  found in the bytes, whatever the client says
    """

    media_type: str
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """The body of a JobRequest, correct in form and not yet checked against its pipeline.

    tree       the body's JSON; a name stands in the place of each long string that is a medium in base64
    long       these strings, by their names
    has_media  whether decoders have to probe media of its messages
    """

    tree: Mapping[str, Any]
    request: JobRequest
    long: Long
    has_media: bool


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that was checked whole and can be run.

    request         JSON: ``model``, ``messages`` (a medium is {"type": "audio", "media": its number}; empty with
                    ``prompt_embeds``, which is {"media": 0}),
                    ``modalities``, ``audio`` ({"voice", "format"}, if the job makes audio) and so each further output
                    that is stored as an artifact,
                    ``parameters`` ({stage: {name: value}} as the request sets them), ``return_token_ids``,
                    ``previews`` (if the job asks for them)
    media           in the order of their numbers
    stages          the stages that the job runs, each after its inputs
    seed            given or drawn, 0 … 2**63-1
    request_digest  equal for equal JSON, whatever its spacing and the order of its keys
    expires_at      unix seconds at which the job stops by itself; it may have passed, because admission has no clock
    priority        among its tenant's jobs
    prompt_tokens   as the model counts them, or about as many where none does (``cost.estimated_tokens``)
    """

    request: dict[str, Any]
    media: Sequence[Media]
    pipeline: Pipeline
    modalities: tuple[str, ...]
    stages: tuple[StageConfig, ...]
    seed: int
    metadata: Mapping[str, str]
    request_digest: str
    expires_at: float | None = None
    priority: Priority = Priority.NORMAL
    prompt_tokens: float = 0.0


def parse(body: bytes | bytearray, settings: Settings) -> ParsedRequest:
    """Check the form of a request's body, the first step of ``admit``, and return it parsed.

    The body must not change while the result is used. Raises InvalidRequest and RequestTooLarge naming the field.
    """
    tree, long = parse_body(body, settings.max_body_bytes, settings.max_text_bytes)
    request = JobRequest.parse(tree)
    contents = [message.content for message in request.messages or ()]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    return ParsedRequest(tree, request, long, has_media=any(not isinstance(part, TextPart) for part in parts))


def admit(
    body: bytes | Mapping[str, Any] | ParsedRequest,
    pipelines: Pipelines,
    settings: Settings,
    models: Renderers | None = None,
    *,
    prompt_embeds: bytes | None = None,
    wall: MediaWall | None = None,
) -> AdmittedRequest:
    """Check a request against its pipeline, whole, and return it fit to be run. Media are decoded last.

    ``models``: the caller's renderers; None: new ones. ``prompt_embeds``: a safetensors file that came beside the body,
    taken as if it stood in the body. ``wall``: the caller's decoders; None: decoders are started for this request.

    Raises InvalidRequest and RequestTooLarge naming the field, NotFound for an unknown pipeline, ModelMissing where
    this host lacks the pipeline's checkpoint, and DecodersUnavailable where no decoder takes the media just now.
    """
    parsed = body if isinstance(body, ParsedRequest) else parse(_as_bytes(body), settings)
    request = parsed.request
    pipeline = pipelines.named(request.model)
    modalities = modalities_of(request, pipeline)
    stages = pipeline.stages_for(modalities)
    outputs = outputs_of(request, pipeline, modalities)
    parameters = parameters_of(request, pipeline, stages)
    renderer = (models or Renderers(settings)).of(pipeline)
    _check_parameters(renderer, pipeline, stages, parameters)
    contents = Contents(pipeline, settings, parsed.long)
    embeds = _prompt_embeds(parsed, prompt_embeds, pipeline)
    admitted: dict[str, Any] = {
        "model": pipeline.name,
        "messages": contents.convert(request.messages or ()),
        "modalities": list(modalities),
        "parameters": parameters,
        "return_token_ids": request.return_token_ids,
    }
    admitted |= outputs | ({"previews": True} if request.previews else {})
    if embeds is not None:
        from omni_jobs.requests.embeds import check_embeds  # loads numpy, which no other request needs

        admitted["prompt_embeds"] = {"media": 0}
        with renderer_errors(pipeline.name):
            prompt_tokens: float = check_embeds(embeds, renderer, stages)
        media = [Media("application/vnd.safetensors", embeds)]
    else:
        length = _Length(renderer, admitted, stages, contents)
        media = _check_media(contents, settings, wall, renderer, length.check)
        prompt_tokens = length.tokens
    return AdmittedRequest(
        request=admitted,
        media=media,
        pipeline=pipeline,
        modalities=modalities,
        stages=stages,
        seed=random.getrandbits(63) if request.seed is None else request.seed,  # no secret
        metadata=request.metadata or {},
        request_digest=_digest(parsed, prompt_embeds),
        expires_at=request.expires_at,
        priority=Priority(request.priority or Priority.NORMAL),
        prompt_tokens=prompt_tokens,
    )


def _as_bytes(body: bytes | Mapping[str, Any]) -> bytes:
    if isinstance(body, bytes):
        return body
    try:
        return json.dumps(dict(body)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request is not JSON: {error}", field="body") from None


def _prompt_embeds(parsed: ParsedRequest, beside: bytes | None, pipeline: Pipeline) -> bytes | memoryview | None:
    """Return the safetensors file of the prompt's embeddings; None for a request with messages."""
    request = parsed.request
    if request.prompt_embeds is None and beside is None:
        if request.messages is None:
            raise InvalidRequest("is required", field="messages")
        return None
    if "prompt_embeds" not in pipeline.accepts:
        known = ", ".join(pipeline.accepts)
        raise InvalidRequest(f"pipeline {pipeline.name} takes no embeddings; it takes: {known}", field="prompt_embeds")
    if request.messages is not None:
        raise InvalidRequest("given, and messages as well: a prompt is one or the other", field="prompt_embeds")
    if request.prompt_embeds is None:
        return beside
    if beside is not None:
        raise InvalidRequest("given twice: in the request, and as a part of the body", field="prompt_embeds")
    data = request.prompt_embeds.data
    return decode_base64(parsed.long.get(data, data), "prompt_embeds.data")


def _check_parameters(
    renderer: PromptRenderer | None,
    pipeline: Pipeline,
    stages: Sequence[StageConfig],
    parameters: Mapping[str, Mapping[str, Any]],
) -> None:
    """Raise InvalidRequest for a parameter that the checkpoint of the stage which reads the request cannot follow."""
    reader = pipeline.reader
    if renderer is None or reader is None or reader not in stages or not isinstance(renderer, ParametersRenderer):
        return  # the last question is the dearest: it asks for each member of the protocol
    try:
        with renderer_errors(pipeline.name):
            renderer.check_parameters(reader.parameters_with(parameters.get(reader.name, {})))
    except InvalidRequest as error:
        error.field = f"stages.{reader.name}.{error.field}"
        raise


def _check_media(
    contents: Contents,
    settings: Settings,
    wall: MediaWall | None,
    renderer: PromptRenderer | None,
    check_length: Callable[[Sequence[MediaInfo]], None],
) -> list[Media]:
    """Return the media of the messages, once they and the prompt's length are checked."""
    if not contents.media:
        check_length(())
        return []
    longest_audio_s = None if renderer is None else renderer.longest_audio_s
    with nullcontext(wall) if wall is not None else MediaWall(settings) as decoders:
        infos = measure(contents.media, decoders, check_length, longest_audio_s)
    return [Media(info.media_type, medium.data) for medium, info in zip(contents.media, infos, strict=True)]


def _check_for_processor(stage: StageConfig, request: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a request of which the stage's input processor could make no prompt."""
    if (path := stage.processor_declaration.check) is not None:
        check = named_object(path, FunctionType)
        with renderer_errors(request["model"], f"check of {stage.processor}"):
            check(stage, request)


class _Length:
    """The length of a prompt, of messages. ``check`` counts it and bounds it."""

    def __init__(
        self,
        renderer: PromptRenderer | None,
        request: Mapping[str, Any],
        stages: Sequence[StageConfig],
        contents: Contents,
    ) -> None:
        self._renderer = renderer
        self._request = request
        self._stages = stages
        self._contents = contents
        self.tokens = 0.0  # AdmittedRequest.prompt_tokens, by the last check

    def check(self, infos: Sequence[MediaInfo]) -> None:
        """Raise InvalidRequest for a prompt of more tokens than the model takes, or of another form than a stage takes.

        Raise RequestTooLarge for pictures beyond a limit.
        """
        for stage in self._stages:
            for medium, info in zip(self._contents.media, infos, strict=True):
                check_input_pixels(stage, medium, info)
        for stage in self._stages:
            _check_for_processor(stage, self._request)
        self.tokens = estimated_tokens(self._contents.text_bytes, infos)
        if self._renderer is None:
            return
        with renderer_errors(self._request["model"]):
            self._renderer.check(self._request)
            tokens = self._renderer.count_tokens(self._request, infos)
            limit = self._renderer.prompt_limit(self._stages)
            is_too_long = tokens > limit
        if is_too_long:
            raise InvalidRequest(f"the prompt has {tokens} tokens; the model takes at most {limit}", field="messages")
        self.tokens = tokens or self.tokens  # models of sounds and pictures count none


def _digest(parsed: ParsedRequest, beside: bytes | None) -> str:
    digest = hashlib.sha256()
    for piece in canonical(parsed.tree, parsed.long):
        digest.update(piece)
    if beside is not None:
        digest.update(b"\0")  # no JSON holds it
        digest.update(beside)
    return f"sha256:{digest.hexdigest()}"
