"""Answers with pictures, made in pieces, and the previews that a stream tells."""

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pytest

from omni_jobs.openai.images.answer import GAP, images_answer, picture_usage
from omni_jobs.openai.images.stream import ChosenPreviews
from omni_jobs.openai.media_in_json import length_of, pieces_of
from omni_jobs.states import JobState
from omni_jobs.views import JobView, ProgressView

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def job(**usage: dict[str, int]) -> JobView:
    return JobView(
        id="job-1",
        pipeline="p",
        pipeline_version="1",
        status=JobState.COMPLETED,
        created_at=AT,
        started_at=AT,
        finished_at=AT,
        modalities=["image"],
        stages=[],
        result={"usage": usage} if usage else {},
        artifacts=[],
        error=None,
        metadata={},
        seed=1,
    )


def tokens(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


@pytest.mark.parametrize("sizes", [[(0,)], [(1,), (2, 3)], [(5, 1, 1, 7), (), (3,)]])
def test_pictures_are_base64_however_they_come(sizes: list[tuple[int, ...]]) -> None:
    pictures = [[bytes([number] * size) for size in pieces] for number, pieces in enumerate(sizes)]
    answer = images_answer([job() for _ in sizes], "png", "auto", has_sources=False)
    text = answer.model_dump_json(exclude_none=True)
    body = b"".join(pieces_of(text, GAP, pictures))
    assert json.loads(body) == {
        "created": int(AT.timestamp()),
        "output_format": "png",
        "data": [{"b64_json": b64encode(b"".join(pieces)).decode()} for pieces in pictures],
    }
    assert len(body) == length_of(text, map(sum, sizes))


def test_usage_is_what_the_stages_count() -> None:
    assert picture_usage([job(), job()], has_sources=False) is None
    drawn = picture_usage([job(a=tokens(3, 0), b=tokens(2, 7)), job(a=tokens(1, 1))], has_sources=False)
    assert drawn is not None
    assert drawn.model_dump() == {
        "input_tokens": 6,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 6},
        "output_tokens": 8,
        "total_tokens": 14,
    }
    edited = picture_usage([job(a=tokens(3, 4))], has_sources=True)
    assert edited is not None
    assert edited.input_tokens_details is None


def told(most: int, seen: list[tuple[int, int | None, str | None]]) -> list[int]:
    """The steps whose previews are told, of those that are seen: done, total, picture."""
    chosen = ChosenPreviews(most)
    return [
        done
        for done, total, picture in seen
        if chosen.takes(ProgressView(done=done, total=total, unit="steps", picture=picture))
    ]


def steps(count: int, every: int = 1) -> list[tuple[int, int | None, str | None]]:
    return [(done, count, f"picture {done}") for done in range(1, count + 1, every)]


@pytest.mark.parametrize(
    ("most", "seen", "expected"),
    [
        (0, steps(8), []),
        (1, steps(8), [4]),
        (2, steps(9), [3, 6]),
        (3, steps(40), [10, 20, 30]),
        (3, steps(2), [1, 2]),
        (3, steps(40, every=35), [36]),
        (3, [(done, 8, None) for done in range(9)], []),
        (3, [(done, 8, "the same") for done in range(9)], [2]),
        (3, [(done, None, f"picture {done}") for done in range(9)], [0, 1, 2]),
        (3, steps(8)[:5] + steps(8), [2, 4, 6]),
    ],
    ids=["none", "one", "two", "three", "few", "rarely seen", "no pictures", "no news", "no total", "begun anew"],
)
def test_previews_are_spread_over_the_steps(
    most: int, seen: list[tuple[int, int | None, str | None]], expected: list[Any]
) -> None:
    assert told(most, seen) == expected
