"""``Sides``: the lengths in pixels that a side of a picture may have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from omni_jobs.errors import ModelError


@dataclass(frozen=True, slots=True)
class Sides:
    """The multiples of ``patch`` from ``smallest`` to ``largest``, themselves multiples of it.

    ``Annotated[int, Sides(…)]`` is a parameter that must be one.
    """

    patch: int
    smallest: int
    largest: int

    def __contains__(self, pixels: int) -> bool:
        return self.smallest <= pixels <= self.largest and pixels % self.patch == 0

    def __str__(self) -> str:
        return f"multiple of {self.patch} from {self.smallest} to {self.largest}"

    def of(self, values: Mapping[str, Any], name: str) -> int:
        """Return the side that a payload's value names. Raises ModelError naming the value if it is none."""
        side = values.get(name)
        if type(side) is not int or side not in self:
            raise ModelError(f"{side!r:.40} is no {self}", field=name)
        return side

    def check(self, pixels: int) -> int:
        """Return a length that is one. Raises ValueError, which names the nearest, for another."""
        if pixels in self:
            return pixels
        below = min(max(pixels // self.patch * self.patch, self.smallest), self.largest)
        above = min(below + self.patch, self.largest) if pixels > self.smallest else below
        nearest = f"the nearest are {below} and {above}" if below != above else f"the nearest is {below}"
        raise ValueError(f"must be a {self}; {nearest}")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        bounds = {"minimum": self.smallest, "maximum": self.largest, "multipleOf": self.patch}
        return {**handler(schema), **bounds}
