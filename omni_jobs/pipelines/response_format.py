"""``ResponseFormat``: the form that a model's answer takes, under OpenAI's names."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from omni_jobs.pipelines.json_schema import check_keywords, check_size


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    check_size(schema)
    check_keywords(schema)
    return schema


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class JsonSchemaFormat(_Strict):
    """A JSON schema by name. ``description`` and ``strict`` change nothing: the answer always follows the schema."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]
    schema_: Annotated[dict[str, Any], Field(alias="schema"), AfterValidator(_checked)]
    description: Annotated[str, Field(max_length=1024)] | None = None
    strict: bool | None = None


class ResponseFormat(_Strict):
    """``{"type": "text"}``, ``{"type": "json_object"}`` or ``{"type": "json_schema", "json_schema": {…}}``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.json_schema is None) == (self.type == "json_schema"):
            raise ValueError("a json_schema is due for the type json_schema, and for no other")
        return self

    @property
    def is_free(self) -> bool:
        """Whether any text will do."""
        return self.type == "text"

    def as_json(self) -> dict[str, Any]:
        """Return it as a chat completion's body has it."""
        given = {} if self.json_schema is None else self.json_schema.model_dump(by_alias=True)
        named = {name: value for name, value in given.items() if value is not None}
        return {"type": self.type, **({"json_schema": named} if named else {})}

    @property
    def schema_text(self) -> str | None:
        """The schema as JSON; None: there is none."""
        return None if self.json_schema is None else json.dumps(self.json_schema.schema_)
