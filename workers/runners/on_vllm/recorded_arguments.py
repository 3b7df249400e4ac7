"""vLLM's engine arguments as recorded from vLLM, and their types for pydantic, for processes without vLLM.

``vllm_arguments.json`` names vLLM's version and has each argument's type as a JSON schema. After a change of vLLM's
version, ``python -m workers.runners.on_vllm.record_arguments`` writes it anew.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
)
from pydantic_core import PydanticCustomError

RECORDED_ARGUMENTS = Path(__file__).with_name("vllm_arguments.json")

STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

_SCALARS: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
_WORDS: Mapping[str | None, str] = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "object": "a mapping",
    None: "any value",
}
_BOUNDS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "minItems": "min_length",
}


@cache
def recorded_arguments() -> Mapping[str, Mapping[str, Any]]:
    """Return vLLM's engine arguments by name: ``type``, a JSON schema, and ``default`` where the list has one."""
    return cast("dict[str, dict[str, Any]]", json.loads(RECORDED_ARGUMENTS.read_text(encoding="utf-8"))["arguments"])


def type_of(schema: Mapping[str, Any], name: str) -> Any:
    """Return the annotation by which pydantic checks values of this JSON schema; ``name`` names the models in it."""
    if "anyOf" in schema:
        return _union(schema["anyOf"], name)
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    if "const" in schema:
        return Literal[schema["const"]]
    kind = schema.get("type")
    if kind is None:
        return JsonValue
    annotation = _collection(schema, name) if kind in ("array", "object") else _SCALARS[kind]
    bounds = {_BOUNDS[key]: value for key, value in schema.items() if key in _BOUNDS}
    return Annotated[annotation, Field(**bounds)] if bounds else annotation


def _union(schemas: Sequence[Mapping[str, Any]], name: str) -> Any:
    members = [type_of(each, f"{name}_{n}") for n, each in enumerate(schemas)]
    if sum(each is not None for each in members) < 2:
        return reduce(or_, members)
    return one_of(members, " or ".join(words_of(each) for each in schemas))


def one_of(members: Sequence[Any], words: str) -> Any:
    """Return the union of these annotations with one message, of ``words``; pydantic's would be one for each member."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("recorded_type", "Input should be {words}", {"words": words}) from None

    return Annotated[reduce(or_, members), WrapValidator(check)]


def _collection(schema: Mapping[str, Any], name: str) -> Any:
    if schema["type"] == "array":
        items = type_of(schema.get("items", {}), name)
        return list[items]  # type: ignore[valid-type]
    if "properties" not in schema:
        values = type_of(schema.get("additionalProperties", {}), name)
        return dict[str, values]  # type: ignore[valid-type]
    fields = {each: (type_of(of, f"{name}_{each}"), None) for each, of in schema["properties"].items()}
    return create_model(name, __config__=STRICT, **fields)  # type: ignore[call-overload]


def words_of(schema: Mapping[str, Any]) -> str:
    """Return what a value of this JSON schema is, in words: ``an integer or null``."""
    if "anyOf" in schema:
        return " or ".join(words_of(each) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(repr(each) for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        return f"a list (each {words_of(schema.get('items', {}))})"
    if kind == "object" and "properties" not in schema:
        return f"a mapping (each value {words_of(schema.get('additionalProperties', {}))})"
    return _WORDS[kind]
