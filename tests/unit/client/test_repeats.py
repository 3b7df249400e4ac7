"""When a failed call is repeated: what an answer asks for, and what the client makes of it."""

from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.client.repeats import LONGEST_RETRY_AFTER_S, error_of, pause_before_retry, retry_after
from omni_jobs.errors import InvalidRequest, OmniJobsError, ServerUnavailable, TooManyJobs

DATE = "Fri, 27 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": " 0 "}, 0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({"retry-after-ms": "soon", "Retry-After": "1"}, 1),
        ({"Retry-After": "Fri, 27 Nov 2026 12:00:05 GMT", "Date": DATE}, 5),
        ({"Retry-After": "Friday, 27-Nov-26 12:00:05 GMT", "Date": DATE}, 5),
        ({"Retry-After": "Fri, 27 Nov 2026 11:00:00 GMT", "Date": DATE}, 0),
        ({"Retry-After": "Fri, 01 Jan 1999 00:00:00 GMT"}, 0),  # by this machine's clock
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "1e9"}, None),
        ({"Retry-After": "Fri, 99 Nov 2026 12:00:00 GMT"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
)
def test_what_an_answer_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(httpx2.Headers(headers)) == seconds


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=255)), st.sampled_from(["Retry-After", "Date"]))
def test_no_header_breaks_the_client(text: str, name: str) -> None:
    headers = {"Retry-After": DATE.encode(), name: text.encode("latin-1")}
    found = retry_after(httpx2.Headers(list(headers.items())))
    assert found is None or found >= 0


def failed(status: int, code: str, **headers: str) -> OmniJobsError:
    body: dict[str, Any] = {"error": {"code": code, "message": "no"}}
    request = httpx2.Request("GET", "http://127.0.0.1:9/v1/jobs")
    return error_of(httpx2.Response(status, json=body, headers=headers, request=request))


def test_the_server_s_pause_is_kept_and_spread() -> None:
    error = failed(503, "storage_unavailable", **{"retry-after-ms": "3000"})
    pauses = {pause_before_retry(error, 0.2) for _ in range(50)}
    assert all(pause is not None and 3 <= pause <= 3.75 for pause in pauses)
    assert len(pauses) > 1


def test_the_client_s_own_pause_is_spread() -> None:
    pauses = {pause_before_retry(ServerUnavailable(), 2.0) for _ in range(50)}
    assert all(pause is not None and 1.5 <= pause <= 2 for pause in pauses)
    assert len(pauses) > 1


@pytest.mark.parametrize("asked", ["0", "1"])
def test_the_client_s_own_pause_is_not_cut_short(asked: str) -> None:
    """A server that starts anew answers 503 and asks for a second, again and again."""
    pause = pause_before_retry(failed(503, "server_busy", **{"Retry-After": asked}), 8.0)
    assert pause is not None
    assert 6 <= pause <= 8


@pytest.mark.parametrize("asked", [str(LONGEST_RETRY_AFTER_S + 1), "Fri, 01 Jan 2100 00:00:00 GMT", "9" * 15])
@pytest.mark.parametrize(("status", "code"), [(429, "too_many_jobs"), (503, "database_unavailable"), (502, "?")])
def test_a_long_wait_is_for_the_caller_to_decide(status: int, code: str, asked: str) -> None:
    error = failed(status, code, **{"Retry-After": asked})
    assert error.retry_after_s is not None
    assert error.retry_after_s > LONGEST_RETRY_AFTER_S
    assert pause_before_retry(error, 0.2) is None


def test_what_is_not_repeated() -> None:
    assert pause_before_retry(ServerUnavailable(), None) is None
    assert pause_before_retry(TooManyJobs(), None) is None
    assert pause_before_retry(failed(422, "invalid_request", **{"Retry-After": "1"}), 0.2) is None
    assert pause_before_retry(InvalidRequest(), 0.2) is None
