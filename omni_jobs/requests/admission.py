"""Admission: a request's body checked against its pipeline, whole, before anything of it is stored."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from omni_jobs.errors import InvalidInput, InvalidRequest, RequestTooLarge
from omni_jobs.media.wall import Kind, MediaWall
from omni_jobs.prompts import PromptRenderer, Renderers
from omni_jobs.requests.job_request import AudioPart, ImagePart, JobRequest, Message, TextPart, VideoPart, refuse
from omni_jobs.requests.strict_body import SLICE, Long, canonical, parse_body

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.pipelines.loader import Pipelines
    from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
    from omni_jobs.settings import Settings

__all__ = ["AdmittedRequest", "Media", "MediaKind", "ParsedRequest", "admit", "parse"]

MediaKind = Kind | Literal["prompt_embeds"]

_DECODED_AT_ONCE = 64 << 10  # characters of base64: an eighth of a millisecond in which no other thread runs
_SAFETENSORS = "application/vnd.safetensors"


@dataclass(frozen=True, slots=True)
class Media:
    """One medium of a request, or its prompt's embeddings, as the client encoded it."""

    kind: MediaKind
    media_type: str  # told from the bytes
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A body that is a request by its form; whether its pipeline takes it is not looked at yet."""

    tree: Mapping[str, Any]  # the JSON, with names in the places of ``long``
    request: JobRequest
    long: Long

    @property
    def is_text(self) -> bool:
        """No media and no embeddings: nothing of it has to be decoded."""
        messages = self.request.messages
        return messages is not None and all(
            isinstance(message.content, str) or all(isinstance(part, TextPart) for part in message.content)
            for message in messages
        )


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that can be run.

    request         JSON: ``model``, ``messages`` (media parts as {"type": "audio", "media": n}; empty with
                    ``prompt_embeds``, {"media": 0}),
                    ``modalities``, ``audio`` ({"voice", "format"}, when audio is wanted),
                    ``parameters`` ({stage: {name: value}}, what the request sets), ``return_token_ids``
    media           by number
    stages          those the job runs, every one after its inputs
    seed            given or drawn, 0 … 2**63-1
    prompt_tokens   None for a pipeline without a model
    expires_at      when the job stops by itself, in unix seconds; may lie in the past: the receiver has the clock
    request_digest  the same for the same JSON, whatever its spacing and the order of its keys
    """

    request: dict[str, Any]
    media: Sequence[Media]
    pipeline: Pipeline
    modalities: tuple[str, ...]
    stages: tuple[StageConfig, ...]
    parameters: Mapping[str, Mapping[str, Any]]
    seed: int
    prompt_tokens: int | None
    metadata: Mapping[str, str]
    request_digest: str
    expires_at: float | None = None


def parse(body: bytes | bytearray, settings: Settings) -> ParsedRequest:
    """The first step of ``admit``, for a caller who wants to know what is coming.

    Raises InvalidRequest and RequestTooLarge naming the field.
    """
    tree, long = parse_body(body, settings.max_body_bytes, settings.max_text_bytes)
    return ParsedRequest(tree, JobRequest.parse(tree), long)


def admit(
    body: bytes | Mapping[str, Any] | ParsedRequest,
    pipelines: Pipelines,
    settings: Settings,
    models: Renderers | None = None,
    *,
    prompt_embeds: bytes | None = None,
    wall: MediaWall | None = None,
) -> AdmittedRequest:
    """Check everything: what is cheap first, then what the media's headers say, and only then are they decoded.

    ``models``: the renderers, where a caller keeps them. ``prompt_embeds``: a safetensors file that
    came beside the body, as if it stood in it. ``wall``: decoders, where a caller keeps them; None: they
    are started for these media and ended.

    Raises InvalidRequest and RequestTooLarge naming the field, NotFound for an unknown
    pipeline, ModelMissing when this host lacks the pipeline's checkpoint, DecodersUnavailable
    when nothing decodes the media just now.
    """
    if not isinstance(body, ParsedRequest):
        body = parse(body if isinstance(body, bytes) else _encoded(body), settings)
    request = body.request
    pipeline = pipelines.named(request.model)
    modalities = _modalities(request, pipeline)
    stages = pipeline.stages_for(modalities)
    audio = _audio(request, pipeline, modalities)
    parameters = _parameters(request, pipeline, stages)
    renderer = (models or Renderers(settings)).of(pipeline)
    content = _Content(pipeline, settings, body.long)
    embeds = _prompt_embeds(body, prompt_embeds, pipeline)
    admitted: dict[str, Any] = {
        "model": pipeline.name,
        "messages": content.messages(request.messages or ()),
        "modalities": list(modalities),
        "parameters": parameters,
        "return_token_ids": request.return_token_ids,
    }
    if audio is not None:
        admitted["audio"] = audio
    media: tuple[Media, ...] = ()
    prompt_tokens = None
    if embeds is not None:
        admitted["prompt_embeds"] = {"media": 0}
        media = (Media("prompt_embeds", _SAFETENSORS, embeds),)
        from omni_jobs.requests.embeds import check_embeds  # loads numpy, which nothing else here needs

        prompt_tokens = check_embeds(embeds, renderer, stages)
    else:
        check = partial(_prompt_tokens, renderer, admitted, stages)
        if content.media:
            with nullcontext(wall) if wall is not None else MediaWall(settings) as decoders:
                longest_audio_s = None if renderer is None else renderer.longest_audio_s
                media, prompt_tokens = _measured(content.media, decoders, check, longest_audio_s)
        else:
            prompt_tokens = check(())
    return AdmittedRequest(
        request=admitted,
        media=media,
        pipeline=pipeline,
        modalities=modalities,
        stages=stages,
        parameters=parameters,
        seed=random.getrandbits(63) if request.seed is None else request.seed,  # no secret
        prompt_tokens=prompt_tokens,
        metadata=request.metadata or {},
        request_digest=_digest(body, prompt_embeds),
        expires_at=request.expires_at,
    )


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(body)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request is not JSON: {error}", field="body") from None


def _digest(body: ParsedRequest, beside: bytes | None) -> str:
    digest = hashlib.sha256()
    for piece in canonical(body.tree, body.long):
        digest.update(piece)
    if beside is not None:
        digest.update(b"\0")  # no JSON holds it
        digest.update(beside)
    return f"sha256:{digest.hexdigest()}"


def _prompt_embeds(body: ParsedRequest, beside: bytes | None, pipeline: Pipeline) -> bytes | memoryview | None:
    """The file of the prompt's embeddings; None for a request with messages."""
    request = body.request
    given = request.prompt_embeds is not None or beside is not None
    if not given:
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
    return _decoded(body.long.get(data, data), "prompt_embeds.data")


def _modalities(request: JobRequest, pipeline: Pipeline) -> tuple[str, ...]:
    known = tuple(pipeline.outputs)
    if request.modalities is None:
        return ("text",) if "text" in known else known[:1]
    for number, modality in enumerate(request.modalities):
        if modality not in known:
            raise InvalidRequest(
                f"pipeline {pipeline.name} does not make {modality!r:.60}; it makes: {', '.join(known)}",
                field=f"modalities.{number}",
            )
    return tuple(dict.fromkeys(request.modalities))


def _audio(request: JobRequest, pipeline: Pipeline, modalities: Sequence[str]) -> dict[str, Any] | None:
    if "audio" not in modalities:
        if request.audio is not None:
            raise InvalidRequest('given, but "audio" is not among the modalities', field="audio")
        return None
    voice = request.audio.voice if request.audio is not None else None
    if voice is not None and voice not in pipeline.voices:
        known = ", ".join(pipeline.voices) or "none"
        raise InvalidRequest(f"unknown voice {voice!r}; pipeline {pipeline.name} has: {known}", field="audio.voice")
    return {"voice": voice or pipeline.default_voice, "format": request.audio.format if request.audio else "wav"}


def _parameters(request: JobRequest, pipeline: Pipeline, stages: Sequence[StageConfig]) -> dict[str, dict[str, Any]]:
    """What the request sets, by stage; checked together with the stages' own defaults."""
    running = {stage.name: stage for stage in stages}
    chosen: dict[str, dict[str, Any]] = {}
    for name, values in (request.stages or {}).items():
        if name not in pipeline.stages:
            known = ", ".join(pipeline.stages)
            raise InvalidRequest(
                f"pipeline {pipeline.name} has no such stage; it has: {known}", field=f"stages.{name:.64}"
            )
        if name not in running:
            raise InvalidRequest("this job's modalities do not need this stage", field=f"stages.{name}")
        chosen[name] = dict(values)
    fields = {(stage, name): f"stages.{stage}.{name}" for stage, values in chosen.items() for name in values}
    for field, name, value in _sampling(request):
        output = pipeline.outputs.get("text")
        if output is None or output.stage not in running:
            raise InvalidRequest("no stage of this job makes text; use stages", field=field)
        values = chosen.setdefault(output.stage, {})
        if name in values and values[name] != value:
            raise InvalidRequest(f"given twice, and not the same: see {fields[output.stage, name]}", field=field)
        values[name] = value
        fields[output.stage, name] = field
    for stage, values in chosen.items():
        try:
            running[stage].parameters_with(values)
        except ValidationError as error:
            raise _with_clients_field(refuse(error, "stages", stage), fields, stage) from None
    return chosen


def _sampling(request: JobRequest) -> list[tuple[str, str, Any]]:
    """(field, the stage's name for it, value) of what is set at the top."""
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    found = [
        ("temperature", "temperature", request.temperature),
        ("top_p", "top_p", request.top_p),
        ("presence_penalty", "presence_penalty", request.presence_penalty),
        ("frequency_penalty", "frequency_penalty", request.frequency_penalty),
        ("max_tokens", "max_tokens", request.max_tokens),
        ("max_completion_tokens", "max_tokens", request.max_completion_tokens),
        ("stop", "stop", stop),
    ]
    return [(field, name, value) for field, name, value in found if value is not None]


def _with_clients_field(error: InvalidRequest, fields: Mapping[tuple[str, str], str], stage: str) -> InvalidRequest:
    """``stages.thinker.temperature`` → ``temperature``, where the client wrote it so."""
    path = (error.field or "").split(".")
    field = fields.get((stage, path[2])) if len(path) > 2 else None
    return error if field is None or field.startswith("stages.") else InvalidRequest(error.message, field=field)


class _Content:
    """The messages' contents: text kept, media taken out as they came."""

    def __init__(self, pipeline: Pipeline, settings: Settings, long: Long) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._long = long
        self._text_bytes = 0
        self.media: list[_Encoded] = []

    def messages(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        if len(messages) > self._settings.max_messages:
            raise RequestTooLarge(f"at most {self._settings.max_messages} messages are taken", field="messages")
        media = sum(not isinstance(part, TextPart) for message in messages for part in _parts(message))
        if media > self._settings.max_media_parts:
            raise RequestTooLarge(f"at most {self._settings.max_media_parts} media are taken", field="messages")
        return [self._message(message, f"messages.{number}") for number, message in enumerate(messages)]

    def _message(self, message: Message, field: str) -> dict[str, Any]:
        parts = _parts(message)
        if not any(not isinstance(part, TextPart) or part.text for part in parts):
            raise InvalidRequest("the message is empty", field=f"{field}.content")
        content: str | list[dict[str, Any]]
        if isinstance(message.content, str):
            content = self._text(message.content, f"{field}.content")
        else:
            content = [self._part(message, part, f"{field}.content.{number}") for number, part in enumerate(parts)]
        return {"role": message.role, "content": content}

    def _part(self, message: Message, part: TextPart | AudioPart | ImagePart | VideoPart, field: str) -> dict[str, Any]:
        kind: Kind
        match part:
            case TextPart():
                return {"type": "text", "text": self._text(part.text, f"{field}.text")}
            case AudioPart():
                kind, given, field = "audio", part.input_audio.data, f"{field}.input_audio.data"
            case ImagePart():
                kind, given, field = "image", part.image_url.url, f"{field}.image_url.url"
            case VideoPart():
                kind, given, field = "video", part.video_url.url, f"{field}.video_url.url"
        encoded = self._long.get(given, given)
        begin = 0 if kind == "audio" else _begin_in_data_url(encoded, field)
        if kind not in self._pipeline.accepts:
            known = ", ".join(self._pipeline.accepts)
            raise InvalidRequest(f"pipeline {self._pipeline.name} takes no {kind}; it takes: {known}", field=field)
        if message.role != "user":
            raise InvalidRequest("media stand in the user's messages only", field=field)
        return {"type": kind, "media": self._medium(kind, _decoded(encoded, field, begin), field)}

    def _text(self, text: str, field: str) -> str:
        fits = len(text) <= self._settings.max_text_bytes  # one that does not is not worth encoding
        self._text_bytes += len(text.encode()) if fits else len(text)
        if self._text_bytes > self._settings.max_text_bytes:
            raise RequestTooLarge(f"at most {self._settings.max_text_bytes} bytes of text are taken", field=field)
        return text

    def _medium(self, kind: Kind, data: memoryview, field: str) -> int:
        self.media.append(_Encoded(kind, data, field))
        return len(self.media) - 1


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A medium whose bytes nobody has looked at yet."""

    kind: Kind
    data: memoryview
    field: str


def _measured(
    media: Sequence[_Encoded],
    wall: MediaWall,
    check: Callable[[Sequence[MediaInfo]], int | None],
    longest_audio_s: float | None,
) -> tuple[tuple[Media, ...], int | None]:
    """The media as accepted, and what ``check`` says of them: first of all headers, and again once they are decoded.

    No medium is decoded while another's header, or all of them together, are refused.
    """
    budget = wall.budget()
    headers = [_of(medium, lambda medium: wall.header(medium.kind, medium.data, budget)) for medium in media]
    prompt_tokens = check(headers)
    infos = [
        _of(medium, lambda medium: wall.probe(medium.kind, medium.data, budget, enough_s=longest_audio_s))
        for medium in media
    ]
    if infos != headers:
        prompt_tokens = check(infos)
    found = (Media(medium.kind, info.media_type, medium.data) for medium, info in zip(media, infos, strict=True))
    return tuple(found), prompt_tokens


def _of(medium: _Encoded, measure: Callable[[_Encoded], MediaInfo]) -> MediaInfo:
    try:
        return measure(medium)
    except InvalidInput as error:
        error.field = medium.field
        raise


def _parts(message: Message) -> Sequence[TextPart | AudioPart | ImagePart | VideoPart]:
    if isinstance(message.content, str):
        return (TextPart(type="text", text=message.content),)
    return message.content


def _begin_in_data_url(url: str | memoryview, field: str) -> int:
    """Where the base64 of ``data:…;base64,…`` begins."""
    if isinstance(url, memoryview):
        url = str(url[:SLICE], "ascii")
    scheme = url[:12].partition(":")[0].lower()
    if scheme in ("http", "https"):
        raise InvalidRequest("remote URLs are not fetched: send the bytes in a data: URL", field=field)
    comma = url.find(",")
    if scheme != "data" or comma < 0 or not url[:comma].lower().endswith(";base64"):
        raise InvalidRequest("must be a data: URL, data:<media type>;base64,<data>", field=field)
    return comma + 1


def _decoded(encoded: str | memoryview, field: str, begin: int = 0) -> memoryview:
    """The bytes of the base64 from ``begin`` on."""
    data = bytearray()  # grown: joined at the end, a large medium would keep all threads waiting for its copy
    try:
        for at in range(begin, len(encoded), _DECODED_AT_ONCE):  # of four characters each, which are three bytes
            if len(data) < (at - begin) // 4 * 3:
                raise binascii.Error("Excess data after padding")
            data += base64.b64decode(encoded[at : at + _DECODED_AT_ONCE], validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"not base64: {error}", field=field) from None
    if not data:
        raise InvalidRequest("there are no bytes", field=field)
    return memoryview(data)


def _prompt_tokens(
    renderer: PromptRenderer | None,
    request: Mapping[str, Any],
    stages: Sequence[StageConfig],
    infos: Sequence[MediaInfo],
) -> int | None:
    if renderer is None:
        return None
    renderer.check(request)
    tokens = renderer.count_tokens(request, infos)
    limit = renderer.prompt_limit(stages)
    if tokens > limit:
        raise InvalidRequest(f"the prompt has {tokens} tokens; the model takes at most {limit}", field="messages")
    return tokens
