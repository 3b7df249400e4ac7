"""The sides of a picture: which are taken, which are named as the nearest, and what a schema says of them."""

import re
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omni_jobs.errors import ModelError
from workers.models.pictures.sides import Sides

SIDES = Sides(32, 64, 2048)
ALL = range(64, 2049, 32)


class Picture(BaseModel):
    model_config = ConfigDict(strict=True)
    width: Annotated[int, SIDES, Field(description="pixels")] = 64


@given(st.integers(-100, 2200))
def test_the_nearest_are_named(pixels: int) -> None:
    if pixels in ALL:
        assert Picture(width=pixels).width == pixels
        return
    with pytest.raises(ValidationError) as refused:
        Picture(width=pixels)
    _, _, nearest = str(refused.value).partition("; the nearest ")
    below, above = max((n for n in ALL if n < pixels), default=None), min((n for n in ALL if n > pixels), default=None)
    found = re.findall(r"\d+", nearest.partition(" [")[0])
    assert [int(each) for each in found] == [each for each in (below, above) if each is not None]


def test_the_schema_has_the_bounds_and_the_description() -> None:
    expected = {"type": "integer", "minimum": 64, "maximum": 2048, "multipleOf": 32, "description": "pixels"}
    assert expected.items() <= Picture.model_json_schema()["properties"]["width"].items()


@pytest.mark.parametrize("wrong", [None, True, "64", 64.0, 32, 65, 4096])
def test_a_payloads_value_is_refused_with_its_name(wrong: Any) -> None:
    assert SIDES.of({"height": 96}, "height") == 96
    with pytest.raises(ModelError) as refused:
        SIDES.of({"height": wrong}, "height")
    assert refused.value.field == "height"
