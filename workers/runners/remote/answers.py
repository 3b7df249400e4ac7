"""Answers of OpenAI-compatible servers, checked: a value of another type is an error that names it."""

from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workers.runners.remote.failures import bad_answer

_Count = Annotated[int, Field(ge=0, le=1 << 53)]
_Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,199}$")]  # it stands in a path


class AnswerModel(BaseModel):
    """Base class of what is read of an answer: only what is used, with strict types. Anything else is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


M = TypeVar("M", bound=AnswerModel)


def parse_answer(model: type[M], data: bytes | bytearray) -> M:
    """Return the answer that JSON is. Raises ModelError for bytes that are no JSON, and naming a value of a wrong type.

    JSON means what its standard says: UTF-8, neither NaN nor lone surrogates, and not nested deeper than 1024.
    """
    return check_answer(model, load_json(data))


def load_json(data: bytes | bytearray) -> Any:
    """Return the value that JSON is. Raises ModelError for bytes that are no JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise bad_answer(f"not JSON: {error}") from None


def check_answer(model: type[M], value: Any) -> M:
    """Return the answer that a JSON value is. Raises ModelError naming a part of a wrong type."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:64] for part in first["loc"]) or "all of it"
        raise bad_answer(f"{where}: {first['msg']}") from None


class Usage(AnswerModel):
    """How many tokens an exchange took; chat and responses call them differently."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None

    def counts(self) -> dict[str, int] | None:
        """Return {"prompt_tokens", "completion_tokens"}; None if the server did not count them."""
        prompt = self.input_tokens if self.prompt_tokens is None else self.prompt_tokens
        completion = self.output_tokens if self.completion_tokens is None else self.completion_tokens
        if prompt is None and completion is None:
            return None
        return {"prompt_tokens": prompt or 0, "completion_tokens": completion or 0}


# Chat completions.


class Audio(AnswerModel):
    """Speech beside a text, base64."""

    data: str
    transcript: str | None = None


class Message(AnswerModel):
    """The assistant's message, or a piece of it."""

    content: str | None = None
    audio: Audio | None = None


class Choice(AnswerModel):
    """The answer of a chat completion."""

    message: Message
    finish_reason: str | None = None


class Completion(AnswerModel):
    """A chat completion in one piece."""

    choices: Annotated[list[Choice], Field(min_length=1)]
    usage: Usage | None = None


class ChunkChoice(AnswerModel):
    """A piece of a chat completion's answer."""

    delta: Message = Message()
    finish_reason: str | None = None


class Chunk(AnswerModel):
    """A piece of a chat completion."""

    choices: list[ChunkChoice]
    usage: Usage | None = None


# Responses.


class IncompleteDetails(AnswerModel):
    """Why a response is incomplete."""

    reason: str | None = None


class OutputPart(AnswerModel):
    """A part of a message; texts are ``output_text``."""

    type: str
    text: str | None = None


class OutputItem(AnswerModel):
    """An item of a response's output; messages have content."""

    type: str
    content: list[OutputPart] | None = None


class Response(AnswerModel):
    """A response; ``status`` is completed, failed, incomplete or not final."""

    status: str | None = None
    output: list[OutputItem] = []
    usage: Usage | None = None
    incomplete_details: IncompleteDetails | None = None
    error: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The text of all its messages."""
        parts = (part for item in self.output if item.type == "message" for part in item.content or ())
        return "".join(part.text or "" for part in parts if part.type == "output_text")


class ResponseEvent(AnswerModel):
    """An event of a response's stream."""

    type: str
    delta: Any = None
    response: Response | None = None


# The others.


class Transcription(AnswerModel):
    """What was said."""

    text: str
    usage: Usage | None = None


class Image(AnswerModel):
    """A picture, as base64 or where it can be fetched."""

    b64_json: str | None = None
    url: str | None = None


class Images(AnswerModel):
    """The pictures that were asked for."""

    data: Annotated[list[Image], Field(min_length=1)]
    usage: Usage | None = None


class Video(AnswerModel):
    """A video that is being made; ``progress`` is in percent."""

    id: _Id
    status: str
    progress: float | None = None
    error: dict[str, Any] | None = None
