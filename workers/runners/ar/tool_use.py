"""``ToolUse``: the tools that a job offers its model, and the form of a call that the model has to make.

A model that may call tools does so in its own words, which vLLM's parser of its kind reads. One that has to
(``tool_choice`` required, or a tool's name) is held to JSON, which is read here.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Self

from omni_jobs.pipelines.json_schema import parts_of_schema
from omni_jobs.prompts.messages import offered_tools

MOST_CALLS: Final = 128
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a job says of tools.

    tools     in OpenAI's form
    choice    "auto", "required", or the name of the one to call: see ``forced``
    forced    whether the model has to call one
    parallel  whether it may call several
    """

    tools: Sequence[Mapping[str, Any]]
    choice: str
    forced: bool
    parallel: bool

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Self | None:
        """Return an admitted request's; None: it offers no tools."""
        tools = offered_tools(request)
        if not tools:
            return None
        choice = request["tool_choice"]
        name = choice if isinstance(choice, str) else choice["function"]["name"]
        return cls(tools, name, choice != "auto", request["parallel_tool_calls"])

    @property
    def named(self) -> Mapping[str, Any] | None:
        """The one function that the model has to call; None: there is a choice."""
        if not self.forced:
            return None
        return next((tool["function"] for tool in self.tools if tool["function"]["name"] == self.choice), None)

    @property
    def schema_text(self) -> str | None:
        """The JSON schema of the calls that the model has to make; None: it makes them in its own words, or none."""
        if not self.forced:
            return None
        if self.named is not None:
            return json.dumps(self.named.get("parameters", _NO_ARGUMENTS))
        most = MOST_CALLS if self.parallel else 1
        calls = {"anyOf": [_call_of(tool["function"], number) for number, tool in enumerate(self.tools)]}
        parameters = {f"of_{number}": _moved(tool["function"], number) for number, tool in enumerate(self.tools)}
        return json.dumps({"type": "array", "minItems": 1, "maxItems": most, "items": calls, "$defs": parameters})

    def calls_of(self, text: str) -> Sequence[Mapping[str, Any]]:
        """Return the calls in a text of that schema; none of one that was cut."""
        try:
            found = json.loads(text)
        except ValueError:
            return ()
        if self.named is not None:
            return [tool_call(self.choice, text.strip())]
        return [tool_call(each["name"], json.dumps(each["parameters"], ensure_ascii=False)) for each in found]


def tool_call(name: str, arguments: str) -> dict[str, Any]:
    """Return a call as a job's result has it, with an id of its own."""
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _call_of(function: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the schema of a call, whose parameters stand in the definitions of the schema of all."""
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "parameters": {"$ref": _place(number)}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(function: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the schema of a function's parameters as a definition, whose references point into itself."""
    parameters: dict[str, Any] = deepcopy(dict(function.get("parameters", _NO_ARGUMENTS)))
    for _, part in parts_of_schema(parameters):
        if isinstance(part, dict) and isinstance(part.get("$ref"), str):
            part["$ref"] = _place(number) + part["$ref"].removeprefix("#")
    return parameters


def _place(number: int) -> str:
    return f"#/$defs/of_{number}"
