"""What templates make of values: words for times and sizes; and markup of others stays text."""

from datetime import UTC, datetime

import pytest

from omni_jobs.dashboard.fragments import Fragment
from omni_jobs.dashboard.templates import bytes_text, clock, plural, rendered, shortened, span


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0 ms"),
        (0.044, "44 ms"),
        (0.44, "0.4 s"),
        (59.9, "59.9 s"),
        (60, "1 min 0 s"),
        (125.9, "2 min 5 s"),
        (3600, "1 h 0 min"),
        (12_060, "3 h 21 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_a_span_has_two_units_at_most(seconds: float, expected: str) -> None:
    assert span(seconds) == expected


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (812, "812 B"), (1000, "1.0 kB"), (1_440_000, "1.4 MB"), (5 * 10**15, "5000.0 TB")],
)
def test_bytes_have_a_unit(count: int, expected: str) -> None:
    assert bytes_text(count) == expected


def test_texts_are_shortened_and_numbers_have_their_noun() -> None:
    assert (shortened("abc", 3), shortened("abcd", 3)) == ("abc", "ab…")
    assert (plural(1, "job"), plural(1200, "job"), plural(2, "child", "children")) == (
        "1 job",
        "1,200 jobs",
        "2 children",
    )


def test_a_time_of_another_day_has_its_day() -> None:
    at = datetime(2026, 11, 27, 9, 30, 5, tzinfo=UTC)
    assert clock(at, at) == "09:30:05"
    assert clock(at, datetime(2026, 11, 28, tzinfo=UTC)) == "2026-11-27 09:30"


def test_a_value_is_text_unless_it_is_a_fragment() -> None:
    frame = {"root": "", "static": "/static/x", "navigation": (), "has_keys": False, "page": "error", "title": "404"}
    error = {"code": "not_found", "message": "<script>alert(1)</script>", "field": None}
    html = rendered("error.html", **frame, error=error)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    fragment = Fragment.of("<b>made</b>")
    assert "<b>made</b>" in rendered("error.html", **frame, error={**error, "message": fragment})
