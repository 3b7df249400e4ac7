"""``ResponseFormat``: its form, and the JSON schemas that are refused before any engine sees them."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from omni_jobs.pipelines.json_schema import MOST_SCHEMA_BYTES
from omni_jobs.pipelines.response_format import ResponseFormat


def of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


GOOD: dict[str, Any] = {
    "type": "object",
    "properties": {"if": {"$ref": "#/$defs/not"}, "contains": {"type": ["string", "null"], "enum": ["not", None]}},
    "required": ["if"],
    "additionalProperties": False,
    "$defs": {"not": {"anyOf": [{"type": "integer"}, {"$ref": "#"}, True]}},
}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "text"},
        {"type": "json_object"},
        of(GOOD, strict=True, description="What it is"),
        of({}, strict=None),
        of({"const": {"not": {"if": 1}}, "examples": [{"$ref": "http://example.com"}]}),
        of(nested(23)),
        of({"properties": {f"p{n}": {} for n in range(1000)}}),
    ],
)
def test_what_is_taken(given: dict[str, Any]) -> None:
    taken = ResponseFormat.model_validate(given)
    assert taken.is_free == (given["type"] == "text")
    schema = given.get("json_schema", {}).get("schema")
    assert (taken.schema_text is None) == (schema is None)
    assert schema is None or json.loads(taken.schema_text or "") == schema


@pytest.mark.parametrize(
    ("given", "place", "message"),
    [
        ({}, ("type",), "Field required"),
        ({"type": "grammar"}, ("type",), "'text', 'json_object' or 'json_schema'"),
        ({"type": "json_schema"}, (), "a json_schema is due for the type json_schema"),
        ({**of({}), "type": "json_object"}, (), "and for no other"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, ("json_schema", "schema"), "Field required"),
        (of({}, name="x y"), ("json_schema", "name"), "match pattern"),
        (of({}, name="x" * 65), ("json_schema", "name"), "match pattern"),
        (of({}, strict="yes"), ("json_schema", "strict"), "valid boolean"),
        (of({}, other=1), ("json_schema", "other"), "not permitted"),
        (of([]), ("json_schema", "schema"), "valid dictionary"),
        (of(nested(24)), ("json_schema", "schema"), "deeper than 24 levels"),
        (of({"enum": ["x" * MOST_SCHEMA_BYTES]}), ("json_schema", "schema"), "at most 65,536 are taken"),
        (of({"items": {"properties": {f"p{n}": {} for n in range(1001)}}}), ("json_schema", "schema"), "1,001 prop"),
        (of({"const": {1, 2}}), ("json_schema", "schema"), "not JSON"),
        (of({"properties": []}), ("json_schema", "schema"), "properties must hold schemas"),
        (of({"properties": {"a": 1}}), ("json_schema", "schema"), "properties.a must be a schema"),
        (of({"anyOf": []}), ("json_schema", "schema"), "anyOf must hold schemas"),
        (of({"items": {"anyOf": [{"not": {}}]}}), ("json_schema", "schema"), "items.anyOf.0.not: the model cannot"),
        (of({"type": "strnig"}), ("json_schema", "schema"), "type must be of array, boolean"),
        (of({"type": [{}]}), ("json_schema", "schema"), "type must be of array, boolean"),
        (of({"$ref": "http://127.0.0.1/x"}), ("json_schema", "schema"), r"\$ref must point into the schema"),
        (of({"$ref": 3}), ("json_schema", "schema"), r"\$ref must point into the schema"),
    ],
)  # fmt: skip
def test_what_is_refused(given: dict[str, Any], place: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        ResponseFormat.model_validate(given)
    (error,) = caught.value.errors()
    assert error["loc"] == place
