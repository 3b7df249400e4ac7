"""What pydantic refuses is told in the API's words, and none of its own are left."""

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from omni_jobs.requests.complaints import words_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def _never(value: str) -> str:
    raise ValueError("is never right")


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, "x", "must be a valid integer"),
        (int, 1.5, "must be a valid integer, got a number with a fractional part"),
        (float, "x", "must be a valid number"),
        (bool, "x", "must be true or false"),
        (str, 5, "must be a string"),
        (Annotated[int, Field(ge=1)], 0, "must be greater than or equal to 1"),
        (Annotated[int, Field(lt=1 << 63)], 1 << 63, f"must be less than {1 << 63}"),
        (Annotated[float, Field(le=0.5)], 1, "must be less than or equal to 0.5"),
        (Annotated[float, Field(gt=0)], 0, "must be greater than 0"),
        (Annotated[float, Field(allow_inf_nan=False)], float("inf"), "must be a finite number"),
        (Annotated[str, Field(min_length=2)], "a", "must have at least 2 characters"),
        (Annotated[str, Field(max_length=2)], "abc", "must have at most 2 characters"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "takes 1 items at most"),
        (Annotated[str, Field(pattern="^a{1}$")], "b", "must match ^a{1}$"),
        (Literal["a", "b"], "c", "must be 'a' or 'b'"),
        (Colour, "green", "must be 'red' or 'blue'"),
        (Annotated[str, AfterValidator(_never)], "a", "is never right"),
        (bytes, 5, "must be a valid bytes"),
    ],
)
def test_the_words_of_a_refusal(kind: Any, value: object, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert words_of(caught.value.errors()[0]) == words
