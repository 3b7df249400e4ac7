"""The contents of a request: text stays, media are read and measured behind the wall, embeddings are checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidInput, InvalidRequest, PayloadError, RequestTooLarge
from omni_jobs.media.formats import Kind
from omni_jobs.media.info import ImageInfo
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.parameter_limits import INPUT_PIXELS
from omni_jobs.requests.job_request import Message, Part, TextPart, medium_of

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
    from omni_jobs.prompts.renderers import PromptRenderer
    from omni_jobs.settings import Settings

_EMBEDS = frozenset({"F16", "BF16", "F32"})  # the dtypes that embeddings may have


@dataclass(frozen=True, slots=True)
class Medium:
    """A medium of a message, read and not yet measured.

    field  its place in the request, such as ``messages.0.content.1.image_url.url``
    """

    kind: Kind
    data: memoryview
    field: str


class Contents:
    """The converter of one request's messages: it bounds their text, and moves their media to ``media``.

    ``fetched`` has the media that stand elsewhere, by their places in the request.
    """

    def __init__(self, pipeline: Pipeline, settings: Settings, fetched: Mapping[str, bytearray] | None = None) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._fetched = fetched or {}
        self.text_bytes = 0  # of all messages, once they are converted
        self.media: list[Medium] = []  # in the order of the messages, once they are converted

    def convert(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the messages as JSON. A medium becomes {"type": kind, "media": its index in ``self.media``}.

        Raises InvalidRequest and RequestTooLarge naming the field.
        """
        _check_numbers(messages, self._settings)
        return [self._message(message, f"messages.{number}") for number, message in enumerate(messages)]

    def count(self, tool_use: Mapping[str, Any]) -> None:
        """Count the text of the tools that a request offers. Raises RequestTooLarge naming them."""
        if "tools" in tool_use:
            self._text(json.dumps(tool_use["tools"], ensure_ascii=False), "tools")

    def _message(self, message: Message, field: str) -> dict[str, Any]:
        """Return a message as JSON; content that is null is the empty text."""
        given = message.content or ""
        is_text = isinstance(given, str)
        says = bool(given) if is_text else any(not isinstance(part, TextPart) or part.text for part in given)
        if not says and message.role != "tool" and not message.tool_calls:
            raise InvalidRequest("the message is empty", field=f"{field}.content")
        content: str | list[dict[str, Any]]
        if isinstance(given, str):
            content = self._text(given, f"{field}.content")
        else:
            content = [self._part(message, part, f"{field}.content.{number}") for number, part in enumerate(given)]
        made: dict[str, Any] = {"role": message.role, "content": content}
        if message.tool_calls:
            for number, call in enumerate(message.tool_calls):
                self._text(call.function.arguments, f"{field}.tool_calls.{number}.function.arguments")
            made["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        if message.tool_call_id is not None:
            made["tool_call_id"] = message.tool_call_id
        return made

    def _part(self, message: Message, part: Part, field: str) -> dict[str, Any]:
        if isinstance(part, TextPart):
            return {"type": "text", "text": self._text(part.text, f"{field}.text")}
        kind, upload, place = medium_of(part)
        field = f"{field}.{place}"
        _check_place(self._pipeline, message, kind, field)
        fetched = self._fetched.get(field)
        data = upload.read(field, is_url=place.endswith(".url")) if fetched is None else memoryview(fetched)
        self.media.append(Medium(kind, data, field))
        return {"type": kind, "media": len(self.media) - 1}

    def _text(self, text: str, field: str) -> str:
        fits = len(text) <= self._settings.max_text_bytes  # one that does not is not worth encoding
        self.text_bytes += len(text.encode()) if fits else len(text)
        if self.text_bytes > self._settings.max_text_bytes:
            raise RequestTooLarge(
                f"at most {self._settings.max_text_bytes} bytes of text (max_text_bytes)", field=field
            )
        return text


def links_of(messages: Sequence[Message], pipeline: Pipeline, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the http and https URLs that name media in the messages: their places, and they themselves.

    So no URL is fetched for a request that is refused anyway because of what stands where. Raises InvalidRequest and
    RequestTooLarge naming the field, also for a URL as the data of a sound, because that has a place for one.
    """
    _check_numbers(messages, settings)
    for number, message in enumerate(messages):
        for at, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, TextPart):
                continue
            kind, upload, place = medium_of(part)
            field = f"messages.{number}.content.{at}.{place}"
            if (link := upload.link) is not None:
                _check_place(pipeline, message, kind, field)
                if not place.endswith(".url"):
                    raise InvalidRequest("a URL stands in input_audio.url", field=field)
                yield field, link


def _check_numbers(messages: Sequence[Message], settings: Settings) -> None:
    """Raise RequestTooLarge for too many messages or media."""
    if len(messages) > settings.max_messages:
        raise RequestTooLarge(f"at most {settings.max_messages} are taken (max_messages)", field="messages")
    contents = [message.content for message in messages if isinstance(message.content, list)]
    media = sum(not isinstance(part, TextPart) for parts in contents for part in parts)
    if media > settings.max_media_parts:
        raise RequestTooLarge(f"at most {settings.max_media_parts} media (max_media_parts)", field="messages")


def _check_place(pipeline: Pipeline, message: Message, kind: Kind, field: str) -> None:
    """Raise InvalidRequest for a medium that the pipeline does not take, or takes from the user alone."""
    if kind not in pipeline.accepts:
        known = ", ".join(pipeline.accepts)
        raise InvalidRequest(f"pipeline {pipeline.name} takes no {kind}; it takes: {known}", field=field)
    if message.role != "user":
        raise InvalidRequest("media stand in the user's messages only", field=field)


def measure(
    media: Sequence[Medium],
    wall: MediaWall,
    check: Callable[[Sequence[MediaInfo]], float],
    longest_audio_s: float | None,
) -> tuple[list[MediaInfo], float]:
    """Measure all media of a request by their headers, then by decoding as far as needed.

    Return each one's info, and the prompt's tokens, as ``check`` returns them; it raises for a prompt that is too long.
    It gets the sizes in the headers before any medium is decoded, and the decoded sizes if they differ. Of a clip about
    ``longest_audio_s`` are decoded; None: all. Raises InvalidRequest and RequestTooLarge naming the medium's field,
    DecodersUnavailable, and what ``check`` raises.
    """
    budget = wall.budget()

    def of_each(measure_one: Callable[[Medium], MediaInfo]) -> list[MediaInfo]:
        infos = []
        for medium in media:
            try:
                infos.append(measure_one(medium))
            except InvalidInput as error:
                error.field = medium.field
                raise
        return infos

    headers = of_each(lambda medium: wall.header(medium.kind, medium.data, budget))
    tokens = check(headers)
    infos = of_each(lambda medium: wall.probe(medium.kind, medium.data, budget, enough_s=longest_audio_s))
    return infos, tokens if infos == headers else check(infos)


def check_input_pixels(stage: StageConfig, medium: Medium, info: MediaInfo) -> None:
    """Check a picture against the stage's limit of ``input_pixels``, if it has one.

    Raises RequestTooLarge for a picture beyond it, and InvalidRequest for one that has too few pixels.
    """
    if INPUT_PIXELS not in stage.limits or not isinstance(info, ImageInfo):
        return
    pixels = info.width * info.height
    problem = stage.bounds[INPUT_PIXELS].problem(pixels)
    if problem is not None:
        at_least = stage.limits[INPUT_PIXELS].at_least
        kind = InvalidRequest if at_least is not None and pixels < at_least else RequestTooLarge
        found = f"the picture has {info.width}×{info.height} pixels, and {INPUT_PIXELS} {problem}"
        raise kind(f"{found} (a limit of this pipeline)", field=medium.field)


def check_embeds(data: bytes | memoryview, renderer: PromptRenderer | None, stages: Sequence[StageConfig]) -> int:
    """Check embeddings that stand in place of a prompt: a safetensors file with one tensor, ``prompt_embeds``.

    Return the number of its tokens. Raises InvalidRequest without a renderer, and unless it has the shape [tokens,
    hidden size] and the dtype F16, BF16 or F32, fits the model in size and length, and holds only finite values.
    """
    from omni_jobs.payloads import PromptEmbedsPayload  # loads numpy, which no other request needs

    if renderer is None:
        raise InvalidRequest("this pipeline has no model to read them", field="prompt_embeds")
    try:
        payload = PromptEmbedsPayload.decode(data, len(data))
        tokens, hidden_size = payload.embeds.shape
        if payload.embeds.dtype not in _EMBEDS:
            known = ", ".join(sorted(_EMBEDS))
            raise InvalidRequest(f"{payload.embeds.dtype}, not one of {known}", field="prompt_embeds.dtype")
        if hidden_size != renderer.hidden_size:
            raise InvalidRequest(
                f"rows of {hidden_size}; the model's hidden size is {renderer.hidden_size}", field="prompt_embeds.shape"
            )
        limit = renderer.prompt_limit(stages)
        if not 1 <= tokens <= limit:
            raise InvalidRequest(f"{tokens} tokens; the model takes 1 to {limit}", field="prompt_embeds.shape")
        payload.check_finite()
        return tokens
    except PayloadError as error:
        raise InvalidRequest(error.message, field=error.field or "prompt_embeds") from None
