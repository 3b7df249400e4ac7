"""The parameters of remote stages, under OpenAI's names: one class for each endpoint, and one for all of them.

None, the default of nearly all, leaves a choice to the server. A field that the server lacks is its to refuse.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.response_format import ResponseFormat

Endpoint = Literal["chat", "responses", "speech", "transcriptions", "images", "videos"]
"""A part of OpenAI's API that a remote stage can use."""

_MOST_TOKENS: Final = 32_768
"""What max_tokens counts as where it is left to the server, as the work of a stage run."""

_Size = Annotated[str, Field(pattern=r"^([1-9][0-9]{1,4}x[1-9][0-9]{1,4}|auto)$", description="WIDTHxHEIGHT")]
_Text = Annotated[str, Field(max_length=65_536)]
_Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,64}$")]


class ChatParameters(StageParameters):
    """Sampling parameters of chat completions. ``top_k`` to ``ignore_eos`` are not OpenAI's: vLLM's and others' are."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000, description="null: as many as the server lets")] | None = 1024
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(max_length=16, strict=False)
    ] = ()
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: _Word | None = None
    top_k: Annotated[int, Field(ge=0, le=100_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    ignore_eos: bool | None = None


class ResponsesParameters(StageParameters):
    """Sampling parameters of responses, of which some are sent under other names.

    ``max_tokens`` is sent as ``max_output_tokens``, and ``response_format`` as the format of the ``text``.
    """

    response_format: ResponseFormat | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000, description="null: as many as the server lets")] | None = 1024


class SpeechParameters(StageParameters):
    """Parameters of speech; the voice and the format are the job's ``audio``."""

    speed: Annotated[float, Field(ge=0.25, le=4)] | None = None
    instructions: _Text | None = None


class TranscriptionParameters(StageParameters):
    """Parameters of transcriptions. The last two are not sent: they say what is asked for and made of the answer."""

    language: _Word | None = None
    prompt: Annotated[_Text, Field(description="words that the sound may hold")] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    words: Annotated[bool, Field(description="whether the transcript says when each word begins and ends")] = False
    subtitles: Annotated[
        tuple[Literal["srt", "vtt"], ...],
        Field(max_length=2, strict=False, description="files of what was heard: SubRip, WebVTT"),
    ] = ()

    @field_validator("subtitles")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a format twice")
        return value


class _PictureParameters(StageParameters):
    size: _Size | None = None
    negative_prompt: _Text | None = None
    num_inference_steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=100)] | None = None


class ImageParameters(_PictureParameters):
    """Parameters of images. The last three of its base are not OpenAI's: vLLM-Omni's and others' are."""

    n: Annotated[int, Field(ge=1, le=1, description="a job has one image")] | None = None
    quality: _Word | None = None
    background: _Word | None = None
    style: _Word | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None


class VideoParameters(_PictureParameters):
    """Parameters of videos. ``fps`` and ``num_frames`` are not OpenAI's: vLLM-Omni's are."""

    instead_of: ClassVar[Mapping[str, str]] = {"num_frames": "seconds"}

    seconds: Annotated[int, Field(ge=1, le=600)] | None = None
    fps: Annotated[int, Field(ge=1, le=240)] | None = None
    num_frames: Annotated[int, Field(ge=1, le=100_000)] | None = None


PARAMETERS_OF_ENDPOINT: Mapping[Endpoint, type[StageParameters]] = {
    "chat": ChatParameters,
    "responses": ResponsesParameters,
    "speech": SpeechParameters,
    "transcriptions": TranscriptionParameters,
    "images": ImageParameters,
    "videos": VideoParameters,
}


class RemoteParameters(
    ChatParameters, SpeechParameters, TranscriptionParameters, ImageParameters, VideoParameters, ResponsesParameters
):
    """The parameters of all endpoints. A stage takes those of its own endpoint, which its engine settings name."""

    work: ClassVar[Mapping[str, int]] = {
        "max_tokens": _MOST_TOKENS,
        "pixels": 1024 * 1024,
        "num_inference_steps": 50,
        "frames": 96,
    }

    @property
    def pixels(self) -> int | None:
        """The pixels of a picture; None: the server's choice."""
        if self.size is None or self.size == "auto":
            return None
        width, height = self.size.split("x")
        return int(width) * int(height)

    @property
    def frames(self) -> int | None:
        """The frames of a video; None: the server's choice."""
        if self.num_frames is not None or self.seconds is None:
            return self.num_frames
        return self.seconds * (self.fps or 24)

    @field_validator("*", mode="before")
    @classmethod
    def _of_endpoint(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a parameter of another endpoint than that of the engine settings, which are the context."""
        endpoint: Endpoint | None = getattr(info.context, "endpoint", None)
        if endpoint is not None and info.field_name not in PARAMETERS_OF_ENDPOINT[endpoint].model_fields:
            known = ", ".join(PARAMETERS_OF_ENDPOINT[endpoint].model_fields)
            raise ValueError(f"no parameter of the endpoint {endpoint}, which has {known}")
        return value


def given(parameters: StageParameters, endpoint: Endpoint) -> dict[str, Any]:
    """Return the parameters that are to be sent, those of the endpoint that are neither None nor empty, as JSON."""
    of_endpoint = parameters.model_dump(mode="json", include=set(PARAMETERS_OF_ENDPOINT[endpoint].model_fields))
    if isinstance(form := getattr(parameters, "response_format", None), ResponseFormat):
        of_endpoint["response_format"] = form.as_json()
    return {name: value for name, value in of_endpoint.items() if value not in (None, [])}
