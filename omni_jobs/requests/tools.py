"""The tools that a request offers the model, and the calls of them in its messages, in OpenAI's form."""

import json
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from omni_jobs.pipelines.json_schema import check_size
from omni_jobs.prompts.messages import strings_of

MOST_TOOLS: Final = 128

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]
CallId = Annotated[str, Field(min_length=1, max_length=256)]


def _sized(schema: dict[str, Any]) -> dict[str, Any]:
    check_size(schema)
    return schema


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of a call, which are written as JSON. Raises ValueError if they are no JSON object.

    Half surrogate pairs and U+0000 are refused, because databases and tokenizers treat them differently.
    """
    try:
        found = json.loads(text, parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("the text contains half a surrogate pair") from None
    except ValueError as error:
        raise ValueError(f"must be a JSON object as text: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("must be a JSON object as text")
    if any("\0" in each for each, _ in strings_of(found)):
        raise ValueError("the text contains the character U+0000")
    return found


def _arguments(text: str) -> str:
    arguments_of(text)
    return text


class _OfTools(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ToolFunction(_OfTools):
    """A function that the model may call. ``parameters``: a JSON schema of its arguments; none: it has no arguments."""

    name: ToolName
    description: Annotated[str, Field(max_length=65_536)] | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_sized)] | None = None
    strict: bool | None = None


class Tool(_OfTools):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(_OfTools):
    name: ToolName


class NamedTool(_OfTools):
    """The one tool that the model has to call."""

    type: Literal["function"]
    function: NamedFunction


class CalledFunction(_OfTools):
    name: ToolName
    arguments: Annotated[str, AfterValidator(_arguments), Field(description="a JSON object, as text")]


class ToolCall(_OfTools):
    """A call of a tool in an assistant's message, as an earlier job's ``result.tool_calls`` has it."""

    id: CallId
    type: Literal["function"]
    function: CalledFunction


ToolChoice = Literal["none", "auto", "required"]
