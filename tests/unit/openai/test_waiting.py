"""For how long a request waits for its jobs."""

import pytest

from omni_jobs.openai.waiting import wait_limit_s


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 570.0),
        ("600", 570.0),
        ("600.0", 570.0),
        ("200", 190.0),
        ("20", 18.0),
        ("0.5", 0.45),
        ("0", 0.0),
        ("-1", 570.0),
        ("inf", 570.0),
        ("1e9", 570.0),
        ("", 570.0),
        ("٣", 570.0),
    ],
)
def test_a_request_waits_less_long_than_its_client(header: str | None, seconds: float) -> None:
    assert wait_limit_s(570.0, header) == pytest.approx(seconds)
