"""vLLM's engine arguments by vLLM's own types: their check before an engine starts, and the list recorded from them.

``workers/runners/on_vllm/vllm_arguments.json`` is the recorded list, by which processes without vLLM check a stage
config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, get_args, get_type_hints

import vllm
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticOmit, core_schema
from vllm.config.quantization import QuantizationConfigArgs
from vllm.engine.arg_utils import AsyncEngineArgs

from omni_jobs.errors import ConfigError

_ARBITRARY = ConfigDict(arbitrary_types_allowed=True)  # torch.dtype is none of pydantic's


@cache
def _annotations() -> dict[str, Any]:
    """Return the type of each engine argument, of which one is a name that vLLM imports for type checkers only."""
    return get_type_hints(AsyncEngineArgs, localns={"QuantizationConfigArgs": QuantizationConfigArgs})


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    annotation = _annotations()[name]
    # A type that has a configuration of its own, a vLLM config, refuses another.
    has_own = dataclasses.is_dataclass(annotation)
    return TypeAdapter(annotation) if has_own else TypeAdapter(annotation, config=_ARBITRARY)


def check_engine_arguments(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments for ``AsyncEngineArgs`` as vLLM's types make them: names of enumerations as members.

    Raises ConfigError naming ``engine.<name>`` for an unknown argument and for a value that is not of its type.
    """
    checked = {}
    for name, value in args.items():
        if name not in _annotations():
            raise ConfigError(f"vLLM {vllm.__version__} has no such argument", field=f"engine.{name}")
        try:
            checked[name] = _adapter(name).validate_python(_member(_annotations()[name], value))
        except (ValidationError, KeyError, TypeError) as error:
            message = f"vLLM {vllm.__version__} refuses the value: {_reason(error)}"
            raise ConfigError(message, field=f"engine.{name}") from error
    return checked


def _reason(error: ValidationError | KeyError | TypeError) -> str:
    """Return why vLLM refuses a value; some of its validators raise KeyError for a name that an enumeration lacks."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return "".join(f"{part}: " for part in first["loc"]) + first["msg"]
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _member(annotation: Any, value: Any) -> Any:
    """Return the member of an enumeration that a string names, in any case, as vLLM's command line takes it."""
    if isinstance(value, str):
        for each in (annotation, *get_args(annotation)):
            if isinstance(each, type) and issubclass(each, Enum) and value.upper() in each.__members__:
                return each[value.upper()]
    return value


class _Recorded(GenerateJsonSchema):
    """Describes the values that a stage config can give: what only Python has is left out."""

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        """Describe an enumeration by its members' names, and by their values where these are no class paths."""
        names = list(schema["cls"].__members__)
        values = [member.value for member in schema["members"]]
        plain = [each for each in values if isinstance(each, int) or (isinstance(each, str) and each.isalnum())]
        return {"enum": list(dict.fromkeys([*names, *plain]))}

    def field_is_present(self, field: Any) -> bool:
        """Leave out what vLLM itself fills."""
        return super().field_is_present(field) and field.get("init", True) and not field["name"].startswith("_")

    def handle_invalid_for_json_schema(
        self, schema: core_schema.CoreSchema, error_info: str
    ) -> JsonSchemaValue:  # torch.dtype, callables, classes
        raise PydanticOmit

    def function_plain_schema(self, schema: Any) -> JsonSchemaValue:
        """Take any value where only a function of vLLM's knows the type."""
        return {}


def describe_engine_arguments() -> dict[str, Any]:
    """Return the recorded list: ``vllm``, the version, and ``arguments``: name → ``type`` and ``default``.

    A type is a JSON schema. Only scalar defaults and empty collections are recorded. The schemas contain no references.
    """
    arguments = {}
    for field in dataclasses.fields(AsyncEngineArgs):
        schema = _adapter(field.name).json_schema(schema_generator=_Recorded)
        described: dict[str, Any] = {"type": _plain(schema, schema.get("$defs", {}))}
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is None or default == {} or default == [] or type(default) in (bool, int, float, str):
            described["default"] = default
        arguments[field.name] = described
    return {"vllm": vllm.__version__, "arguments": dict(sorted(arguments.items()))}


_KEPT = ("type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems")


def _plain(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without references, texts and defaults."""
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    plain = {name: schema[name] for name in _KEPT if name in schema}
    if "anyOf" in schema:
        plain["anyOf"] = [_plain(each, definitions) for each in schema["anyOf"]]
    if "items" in schema:
        plain["items"] = _plain(schema["items"], definitions)
    if "properties" in schema:
        plain["properties"] = {name: _plain(each, definitions) for name, each in sorted(schema["properties"].items())}
    elif isinstance(schema.get("additionalProperties"), Mapping):
        plain["additionalProperties"] = _plain(schema["additionalProperties"], definitions)
    return plain
