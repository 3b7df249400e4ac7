"""Limits: a stage config narrows what a job may set of a stage's numbers, such as steps, width and pixels.

    limits:
      steps: {at_most: 60}
      pixels: {at_most: 1048576}

The bounds of a number are those of its parameters' class, as its JSON schema has them. A limit may only narrow them.
It is asked where a job is submitted, and not by workers: jobs that wait may have been submitted before it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.errors import PydanticInvalidForJsonSchema

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.parameters import StageParameters

INPUT_PIXELS: Final = "input_pixels"
"""The pixels of each picture in a job's messages: a limit of a stage that reads the request."""


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value


Number = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_whole)]


class Limit(BaseModel):
    """A limit of one number, as a stage config writes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    at_least: Number | None = None
    at_most: Number | None = None

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("needs at_least, at_most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is more than at_most")
        return self


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number may be; None: there is no such bound."""

    at_least: float | None = None
    more_than: float | None = None
    at_most: float | None = None
    less_than: float | None = None
    multiple_of: float | None = None
    is_whole: bool = False

    def __str__(self) -> str:
        known = {name.replace("_", " "): value for name, value in self.to_dict().items() if name != "multiple_of"}
        texts = " and ".join(f"{name} {value}" for name, value in known.items())
        return texts if self.multiple_of is None else f"a multiple of {self.multiple_of}, {texts}"

    def to_dict(self) -> dict[str, float]:
        """Return the bounds that there are."""
        return {name: each for name, each in asdict(self).items() if each is not None and name != "is_whole"}

    def problem(self, value: float) -> str | None:
        """Return what is wrong with a number that is too small or too large, and which is the nearest; else None."""
        if (self.at_least is not None and value < self.at_least) or (
            self.more_than is not None and value <= self.more_than
        ):
            nearest = self.at_least
        elif (self.at_most is None or value <= self.at_most) and (self.less_than is None or value < self.less_than):
            return None
        else:
            nearest = self.at_most
        said = f"must be {self}"
        return said if nearest is None or self.multiple_of is None else f"{said}; the nearest is {nearest}"

    def narrowed(self, limit: Limit) -> "Bounds":
        """Return these bounds within a limit. Raises ConfigError for a limit that widens them or is no such number."""
        given: dict[str, float] = limit.model_dump(exclude_none=True)
        for name, bound in given.items():
            if self.is_whole and not isinstance(bound, int):
                raise ConfigError(f"{name} must be a whole number, not {bound}")
            if self.multiple_of is not None and bound % self.multiple_of:
                raise ConfigError(f"{name} must be a multiple of {self.multiple_of}, not {bound}")
            if (problem := self.problem(bound)) is not None:
                raise ConfigError(f"a limit only narrows, so {name} {problem}")
        changed: dict[str, Any] = {**given}
        if "at_least" in given:
            changed["more_than"] = None
        if "at_most" in given:
            changed["less_than"] = None
        return replace(self, **changed)


def own_bounds(parameters: type[StageParameters]) -> dict[str, Bounds]:
    """Return the bounds that a class of parameters has for each of its numbers, also those that it computes."""
    try:
        properties = parameters.model_json_schema()["properties"]
    except (KeyError, PydanticInvalidForJsonSchema):  # no parameters, or of types that JSON does not have
        properties = {}
    numbers = {name: _number(schema) for name, schema in properties.items()}
    bounds = {name: _bounds(schema) for name, schema in numbers.items() if schema is not None}
    return bounds | dict.fromkeys(parameters.quantities, Bounds(at_least=1, is_whole=True))


class Beyond(NamedTuple):
    """A value beyond a limit: the parameter that says it, the limit, and what is wrong."""

    parameter: str
    limit: str
    problem: str


def beyond(bounds: Mapping[str, Bounds], values: Mapping[str, Any]) -> Beyond | None:
    """Return the first value that is beyond its bounds; None if none is.

    A value that is no number is passed over: its parameters' class refuses it.
    """
    for name, value in values.items():
        if name in bounds and isinstance(value, int | float) and not isinstance(value, bool):
            problem = bounds[name].problem(value)
            if problem is not None:
                return Beyond(name, name, problem)
    return None


def _number(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the part of a parameter's schema that is a number's; None if it is none."""
    parts = schema.get("anyOf", [schema])
    return next((part for part in parts if part.get("type") in ("integer", "number")), None)


def _bounds(schema: Mapping[str, Any]) -> Bounds:
    return Bounds(
        at_least=schema.get("minimum"),
        more_than=schema.get("exclusiveMinimum"),
        at_most=schema.get("maximum"),
        less_than=schema.get("exclusiveMaximum"),
        multiple_of=schema.get("multipleOf"),
        is_whole=schema["type"] == "integer",
    )
