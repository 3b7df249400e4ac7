"""``JobRequest``: the JSON of ``POST /v1/jobs``, a chat completion's body with parameters for stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from omni_jobs.errors import InvalidRequest
from omni_jobs.media.formats import Kind
from omni_jobs.requests.complaints import words_of
from omni_jobs.requests.deadline import unix_seconds
from omni_jobs.requests.tools import MOST_TOOLS, CallId, NamedTool, Tool, ToolCall, ToolChoice
from omni_jobs.requests.upload import Upload

# Tags of the unions below stand in pydantic's error paths; no field is called like them.
_TAGS = frozenset(
    {"<string>", "<parts>", "<text>", "<input_audio>", "<image_url>", "<video_url>", "<one>", "<several>", "<named>"}
)
_OR_FETCHED = "(http:// and https:// too, where the server fetches)"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TextPart(_Frozen):
    type: Literal["text"]
    text: str


class InputAudio(_Frozen):
    """A sound: its ``data`` or its ``url``."""

    data: Annotated[Upload | None, Field(description="base64 of a sound file, or a data: URL of it")] = None
    url: Annotated[Upload | None, Field(description=f"in place of data: data:audio/…;base64,… {_OR_FETCHED}")] = None
    format: Annotated[
        str | None,
        Field(max_length=64, description="taken for OpenAI's sake: the bytes themselves tell"),
    ] = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.data is None) == (self.url is None):
            raise ValueError("takes data or url, and not both")
        return self


class AudioPart(_Frozen):
    type: Literal["input_audio"]
    input_audio: InputAudio


class ImageUrl(_Frozen):
    url: Annotated[
        Upload,
        Field(description=f"data:image/…;base64,… of a PNG, JPEG, WebP, GIF, AVIF, TIFF or BMP {_OR_FETCHED}"),
    ]
    detail: Literal["auto"] | None = None


class ImagePart(_Frozen):
    type: Literal["image_url"]
    image_url: ImageUrl


class VideoUrl(_Frozen):
    url: Annotated[
        Upload,
        Field(
            description=f"data:video/…;base64,… of an MP4, QuickTime, 3GP, WebM, Matroska, AVI or MPEG-TS {_OR_FETCHED}"
        ),
    ]


class VideoPart(_Frozen):
    type: Literal["video_url"]
    video_url: VideoUrl


MediaPart = AudioPart | ImagePart | VideoPart


def medium_of(part: MediaPart) -> tuple[Kind, Upload, str]:
    """Return the kind and the medium of a part, and the medium's place in it, such as ``image_url.url``."""
    match part:
        case AudioPart(input_audio=InputAudio(url=None) as sound):
            return "audio", sound.data or Upload(), "input_audio.data"  # without a url there are data
        case AudioPart(input_audio=sound):
            return "audio", sound.url or Upload(), "input_audio.url"
        case ImagePart():
            return "image", part.image_url.url, "image_url.url"
        case VideoPart():
            return "video", part.video_url.url, "video_url.url"


def _kind_of_part(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return f"<{kind}>" if isinstance(kind, str) else None


def _kind_of_content(value: Any) -> str | None:
    return "<string>" if isinstance(value, str) else "<parts>" if isinstance(value, list) else None


def _kind_of_stop(value: Any) -> str:
    return "<one>" if isinstance(value, str) else "<several>"


def _kind_of_choice(value: Any) -> str:
    return "<one>" if isinstance(value, str) else "<named>"


Part = Annotated[
    Annotated[TextPart, Tag("<text>")]
    | Annotated[AudioPart, Tag("<input_audio>")]
    | Annotated[ImagePart, Tag("<image_url>")]
    | Annotated[VideoPart, Tag("<video_url>")],
    Discriminator(
        _kind_of_part,
        custom_error_type="unknown_part",
        custom_error_message="must be an object of type text, input_audio, image_url or video_url",
    ),
]

# fail_fast, here and below: pydantic makes an error object of every wrong item otherwise, and one is shown.
Parts = Annotated[list[Part], Field(min_length=1, fail_fast=True)]


class Message(_Frozen):
    """One message of the conversation. Only the user's messages may have media.

    An assistant's may have calls of tools, with or without a text; the answer to one is a message of the role tool.
    """

    role: Literal["system", "user", "assistant", "tool"]
    tool_calls: Annotated[list[ToolCall] | None, Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)] = None
    tool_call_id: Annotated[CallId | None, Field(validate_default=True)] = None
    content: Annotated[
        Annotated[Annotated[str, Tag("<string>")] | Annotated[Parts, Tag("<parts>")], Discriminator(_kind_of_content)]
        | None,
        Field(validate_default=True),
    ] = None

    @field_validator("tool_calls")
    @classmethod
    def _calls_of_assistant(cls, value: list[ToolCall] | None, info: ValidationInfo) -> list[ToolCall] | None:
        if value is not None and info.data.get("role") != "assistant":
            raise ValueError("only an assistant calls tools")
        return value

    @field_validator("tool_call_id")
    @classmethod
    def _answers_a_call(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("role") == "tool" and value is None:
            raise PydanticCustomError("missing", "is required")
        if info.data.get("role") != "tool" and value is not None:
            raise ValueError("stands in messages of the role tool")
        return value

    @field_validator("content")
    @classmethod
    def _says_something(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and not info.data.get("tool_calls"):
            raise PydanticCustomError("missing", "is required")
        return value


class PromptEmbeds(_Frozen):
    """Embeddings of a prompt, in place of messages."""

    data: Annotated[
        Upload,
        Field(description="base64 of a safetensors file with one tensor, prompt_embeds: float [tokens, hidden size]"),
    ]


OutputFormatName = Annotated[
    str | None,
    Field(max_length=64, description="one of the pipeline's outputs in GET /v1/pipelines; null: the first of them"),
]


class AudioOptions(_Frozen):
    """The voice and the format of the speech that a job makes."""

    voice: Annotated[str, Field(max_length=64)] | None = None
    format: OutputFormatName = None


class OutputOptions(_Frozen):
    """The format of the image or video that a job makes."""

    format: OutputFormatName = None


def _one(n: int | None) -> int | None:
    if n not in (None, 1):
        raise ValueError("must be 1: a job has one answer, several answers are several jobs")
    return n


class JobRequest(_Frozen):
    """The body of a submit. Sampling parameters at its top level are for the stage that makes the text."""

    model: Annotated[str, Field(max_length=100, description="the pipeline's name, or NAME@VERSION")]
    messages: Annotated[list[Message] | None, Field(min_length=1, fail_fast=True, description="or prompt_embeds")] = (
        None
    )
    prompt_embeds: Annotated[
        PromptEmbeds | None,
        Field(description="in place of messages, where the pipeline accepts them; or a part of a multipart body"),
    ] = None
    modalities: Annotated[
        list[str] | None, Field(min_length=1, max_length=8, description='default ["text"]; what the job makes')
    ] = None
    audio: AudioOptions | None = None
    image: OutputOptions | None = None
    video: OutputOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    n: Annotated[int | None, AfterValidator(_one), Field(description="1: a job has one answer")] = None
    max_tokens: int | None = None
    max_completion_tokens: Annotated[int | None, Field(description="the same as max_tokens")] = None
    stop: (
        Annotated[
            Annotated[str, Tag("<one>")] | Annotated[list[str], Field(fail_fast=True), Tag("<several>")],
            Discriminator(_kind_of_stop),
        ]
        | None
    ) = None
    response_format: Annotated[
        dict[str, Any] | None,
        Field(description="the form of the text: text, json_object, or json_schema with a schema that it follows"),
    ] = None
    logprobs: Annotated[
        bool | None, Field(description="whether the result has the logprob of each token of the text")
    ] = None
    tools: Annotated[
        list[Tool] | None,
        Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True, description="functions that the model may call"),
    ] = None
    tool_choice: Annotated[
        Annotated[
            Annotated[ToolChoice, Tag("<one>")] | Annotated[NamedTool, Tag("<named>")], Discriminator(_kind_of_choice)
        ]
        | None,
        Field(description="none, auto (default), required, or the one tool to call"),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Field(description="false: the model calls one tool at most; default true")
    ] = None
    top_logprobs: Annotated[int | None, Field(description="with logprobs: the likeliest tokens beside each")] = None
    stages: Annotated[
        dict[str, dict[str, Any]] | None,
        Field(description="parameters by stage; GET /v1/pipelines lists the stages"),
    ] = None
    seed: Annotated[int | None, Field(ge=0, lt=1 << 63, description="default: drawn at random, and told")] = None
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None,
        Field(max_length=16, description="the client's own, given back with the job"),
    ] = None
    expires_at: Annotated[
        float | None,
        BeforeValidator(unix_seconds),
        WithJsonSchema({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}, {"type": "null"}]}),
        Field(description="when the job stops by itself if it has not ended: RFC 3339 with a zone, or unix seconds"),
    ] = None
    priority: Annotated[
        Literal["high", "normal", "low"] | None,
        Field(description="among its tenant's jobs; default normal. A tenant may have to be permitted high"),
    ] = None
    return_token_ids: bool = False
    previews: Annotated[bool | None, Field(description="whether progress shows previews, of stages that draw")] = None
    keep_payloads: Annotated[
        bool | None,
        Field(description="whether what its stages hand on is kept for a time after its end, so that it can be forked"),
    ] = None

    @property
    def has_media(self) -> bool:
        """Whether media stand in its messages, which decoders have to probe."""
        return next(self._media_parts(), None) is not None

    @property
    def links(self) -> int:
        """The number of its media that are named by http or https URLs."""
        return sum(medium_of(part)[1].link is not None for part in self._media_parts())

    def _media_parts(self) -> Iterator[MediaPart]:
        for message in self.messages or ():
            if isinstance(message.content, list):
                yield from (part for part in message.content if not isinstance(part, TextPart))

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> JobRequest:
        """Return the request that a JSON object is, in which Uploads may stand for base64.

        Raises InvalidRequest naming the first field that is wrong.
        """
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise refuse(error) from None


def refuse(error: ValidationError, *prefix: str) -> InvalidRequest:
    """Return an InvalidRequest for pydantic's first complaint; ``prefix`` stands before the field that it names."""
    first = error.errors(include_url=False, include_input=False)[0]
    parts = [str(part) for part in (*prefix, *first["loc"]) if part not in _TAGS and part != "[key]"]
    return InvalidRequest(words_of(first), field=".".join(part[:64] for part in parts) or "body")
