"""``declared_fields``: the form of a stage's parameters, made of what their class and the pipeline file declare.

A field that is left empty is not sent, so that the stage's default stands.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from pydantic.errors import PydanticInvalidForJsonSchema

from omni_jobs.errors import InvalidInput, InvalidRequest
from omni_jobs.http.request_parameters import NUMBER
from omni_jobs.pipelines.parameter_limits import Bounds
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.requests.json_body import parse_body

FieldKind = Literal["whole number", "number", "text", "long text", "lines", "choice", "choices", "json"]
"""How a value is typed: as a number, a line, a text, some lines, one of a few, some of a few, or JSON."""

_FLAG: Final[Mapping[str, Any]] = {"yes": True, "no": False}
_MOST_JSON: Final = 1 << 20  # bytes
_LONGEST_LINE: Final = 200  # characters of a text that one line shows


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """The field of a form for one parameter of a stage.

    name     ``stages.STAGE.PARAMETER``, as errors of the API name it
    label    the parameter's name
    kind     how its value is typed
    default  the stage's own value, as a text; "" where that is none
    hint     what the parameter is, and its bounds
    choices  the values to choose from, by what stands for them
    """

    name: str
    label: str
    kind: FieldKind
    default: str = ""
    hint: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)

    def is_given(self, texts: Sequence[str]) -> bool:
        """Return whether a form sets the parameter. One that does not, leaves it to the stage's default."""
        return any(texts)

    def read(self, texts: Sequence[str]) -> Any:
        """Return the value that a form gives. The stage checks it; here it only becomes of the right type.

        Raises InvalidRequest naming the field.
        """
        if self.kind == "choices":
            return [self._chosen(text) for text in texts]
        if len(texts) > 1:
            raise self._refuse("this part is given twice")
        [text] = texts
        match self.kind:
            case "choice":
                return self._chosen(text)
            case "lines":
                return self._lines(text)
            case "json":
                return self._json(text.strip(), "is no JSON")
            case "text" | "long text":
                return text
        text = text.strip()
        if not NUMBER.fullmatch(text):
            raise self._refuse("must be a number, such as 0.5" if self.kind == "number" else "must be a whole number")
        return self._json(text, "must be a number as JSON has it")

    def _chosen(self, text: str) -> Any:
        if text not in self.choices:
            raise self._refuse(f"must be one of {', '.join(self.choices)}")
        return self.choices[text]

    def _lines(self, text: str) -> Any:
        """Return the lines of a text; a list as JSON has it as it is, because a line may not hold every text."""
        if text.lstrip().startswith("["):
            with suppress(InvalidRequest):
                return self._json(text.strip(), "")
        return [line for line in text.split("\n") if line]

    def _json(self, text: str, problem: str) -> Any:
        """Return the value of a JSON text, within the bounds of a request's body."""
        try:
            value = parse_body(b'{"value":%b}' % text.encode(), _MOST_JSON, _MOST_JSON)
        except InvalidInput as error:
            raise self._refuse(f"{problem}: {error.message}" if self.kind == "json" else problem) from None
        if value.keys() != {"value"}:
            raise self._refuse(problem)
        return value["value"]

    def _refuse(self, problem: str) -> InvalidRequest:
        return InvalidRequest(problem, field=self.name)


def declared_fields(stage: StageConfig) -> list[DeclaredField]:
    """Return a field for each parameter that a job may set of a stage.

    Raises ConfigError for a stage whose plug-in is not there, and PluginBroken.
    """
    defaults = stage.parameters_with({}).model_dump(mode="json")
    schema = _schema(stage.parameters_type)
    defined = schema.get("$defs", {})
    return [
        _field(stage, name, schema.get("properties", {}).get(name, {}), default, defined)
        for name, default in defaults.items()
    ]


@cache
def _schema(parameters: type[StageParameters]) -> dict[str, Any]:
    try:
        return parameters.model_json_schema()
    except PydanticInvalidForJsonSchema:  # of types that JSON does not have
        return {}


def _field(
    stage: StageConfig, name: str, schema: Mapping[str, Any], default: Any, defined: Mapping[str, Any]
) -> DeclaredField:
    part = _resolved(schema, defined)
    kind, choices = _kind_of(part, defined)
    doc = str(schema.get("description", ""))
    doc = doc.replace("null:", "empty:") if default is None else doc
    told = [
        doc,
        _bounds_text(stage.bounds.get(name), part),
        "one on each line, or a list as JSON" if kind == "lines" else "",
    ]
    hint = "; ".join(each for each in told if each)
    return DeclaredField(f"stages.{stage.name}.{name}", name, kind, _shown(default), hint, choices)


def _resolved(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a schema that is not null; {} where there are several."""
    parts = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    if len(parts) != 1:
        return {}
    reference = str(parts[0].get("$ref", ""))
    found: Mapping[str, Any] = defined.get(reference.rpartition("/")[2], {}) if reference else parts[0]
    return found


def _kind_of(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> tuple[FieldKind, Mapping[str, Any]]:
    """Return how a value of a schema is typed, and what there is to choose from."""
    if "enum" in schema or "const" in schema:
        return "choice", {_shown(value): value for value in schema.get("enum", [schema.get("const")])}
    match schema.get("type"):
        case "boolean":
            return "choice", _FLAG
        case "integer":
            return "whole number", {}
        case "number":
            return "number", {}
        case "string":
            return ("long text" if schema.get("maxLength", 0) > _LONGEST_LINE else "text"), {}
        case "array":
            inner, choices = _kind_of(_resolved(schema.get("items", {}), defined), defined)
            if inner == "choice" and choices is not _FLAG:
                return "choices", choices
            if inner in ("text", "long text"):
                return "lines", {}
    return "json", {}


def _bounds_text(bounds: Bounds | None, schema: Mapping[str, Any]) -> str:
    if bounds is not None:
        known = bounds.to_dict()
        if known.keys() - {"multiple_of"} == {"at_least", "at_most"}:
            steps = f", in steps of {_number(known['multiple_of'])}" if "multiple_of" in known else ""
            return f"{_number(known['at_least'])} to {_number(known['at_most'])}{steps}"
        return str(bounds)
    longest = schema.get("maxLength")
    return "" if longest is None else f"at most {longest:,} characters"


def _number(value: float) -> str:
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


def _shown(value: Any) -> str:
    """Return a value as a person reads it in a form; a text that would not be seen, in quotes."""
    match value:
        case None | [] | {}:
            return ""
        case bool():
            return "yes" if value else "no"
        case str():
            return value if value and value == value.strip() else json.dumps(value, ensure_ascii=False)
        case list() if all(isinstance(each, str) for each in value):
            return ", ".join(map(_shown, value))
        case int() | float():
            return str(value)
    return json.dumps(value, ensure_ascii=False)
