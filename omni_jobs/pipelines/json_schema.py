"""What a JSON schema may be that a model is to follow: its size, and the keywords that a grammar keeps to.

What a grammar cannot hold an answer to is refused here, because an engine would pass it over in silence.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

MOST_SCHEMA_BYTES: Final = 64 << 10
MOST_SCHEMA_LEVELS: Final = 24
MOST_PROPERTIES: Final = 1000

_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})  # name → schema
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SINGLE = frozenset({"items", "additionalProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"})
_NOT_KEPT = frozenset({"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains",
                       "$dynamicRef", "$recursiveRef"})  # fmt: skip
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})

SchemaPath = tuple[str | int, ...]
"""A place in a schema, such as properties, age."""


def check_size(schema: Mapping[str, Any]) -> None:
    """Raise ValueError for a schema that is too large or too deep, has too many properties, or is no JSON."""
    if _levels(schema) > MOST_SCHEMA_LEVELS:
        raise ValueError(f"the schema nests objects and arrays deeper than {MOST_SCHEMA_LEVELS} levels")
    try:
        size = len(json.dumps(schema, separators=(",", ":")))
    except (TypeError, ValueError):
        raise ValueError("the schema is not JSON") from None
    if size > MOST_SCHEMA_BYTES:
        raise ValueError(f"the schema has {size:,} bytes as JSON; at most {MOST_SCHEMA_BYTES:,} are taken")
    properties = sum(len(part.get("properties") or ()) for _, part in parts_of_schema(schema))
    if properties > MOST_PROPERTIES:
        raise ValueError(f"the schema has {properties:,} properties; at most {MOST_PROPERTIES:,} are taken")


def check_keywords(schema: Mapping[str, Any]) -> None:
    """Raise ValueError for a schema that no grammar keeps to, because of its keywords, types or references."""
    for at, part in parts_of_schema(schema):
        _check_part(at, part)


def _levels(schema: Any) -> int:
    """Return how deep objects and arrays nest, as far as it matters."""
    level = [schema]
    for depth in range(1, MOST_SCHEMA_LEVELS + 2):
        children = (each.values() if isinstance(each, dict) else each for each in level)
        level = [child for members in children for child in members if isinstance(child, dict | list)]
        if not level:
            return depth
    return MOST_SCHEMA_LEVELS + 1


def parts_of_schema(schema: Mapping[str, Any]) -> Iterator[tuple[SchemaPath, Mapping[str, Any]]]:
    """Yield each schema within a schema, itself first, with its place. Raises ValueError for what is none."""
    waiting: list[tuple[SchemaPath, Any]] = [((), schema)]
    while waiting:
        at, part = waiting.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            raise ValueError(f"{_named(at)} must be a schema: an object, true or false")
        yield at, part
        for keyword, value in part.items():
            members: Iterable[tuple[str | int, Any]] | None
            if keyword in _OF_SCHEMAS:
                members = value.items() if isinstance(value, Mapping) else None
            elif keyword in _LISTS:
                members = enumerate(value) if isinstance(value, list) and value else None
            elif keyword in _SINGLE:
                waiting.append(((*at, keyword), value))
                continue
            else:
                continue
            if members is None:
                raise ValueError(f"{_named((*at, keyword))} must hold schemas")
            waiting += [((*at, keyword, name), member) for name, member in members]


def _check_part(at: SchemaPath, part: Mapping[str, Any]) -> None:
    for keyword in part:
        if keyword in _NOT_KEPT:
            raise ValueError(f"{_named((*at, keyword))}: the model cannot be held to this keyword")
    types = part.get("type", [])
    for each in types if isinstance(types, list) else [types]:
        if not isinstance(each, str) or each not in _TYPES:
            raise ValueError(f"{_named((*at, 'type'))} must be of {', '.join(sorted(_TYPES))}, not {each!r:.60}")
    reference = part.get("$ref", "#")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise ValueError(f"{_named((*at, '$ref'))} must point into the schema, as #/$defs/name: nothing is fetched")


def _named(at: SchemaPath) -> str:
    return ".".join(str(part)[:64] for part in at) or "the schema"
