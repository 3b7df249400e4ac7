"""For how long a request waits for its jobs."""

import pytest

from omni_jobs.openai.waiting import wait_limit_s


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
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
def test_a_request_waits_less_long_than_its_client(header: str, seconds: float) -> None:
    assert wait_limit_s(570.0, [header]) == pytest.approx(seconds)


def test_the_shortest_time_that_a_client_says_counts() -> None:
    assert wait_limit_s(570.0, []) == 570.0
    assert wait_limit_s(570.0, ["600", "20"]) == pytest.approx(18.0)
    assert wait_limit_s(570.0, ["20", "soon"]) == pytest.approx(18.0)
