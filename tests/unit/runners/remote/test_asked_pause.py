"""workers.runners.remote.asked_pause: for how long servers ask to be left alone."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from workers.runners.remote.asked_pause import pause_in, pause_in_words, pause_of
from workers.runners.remote.server_error import ServerError


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": " 7.5 "}, 7.5),
        ({"retry-after": "7s"}, 7),
        ({"retry-after": "1m30s"}, 90),
        ({"retry-after": "2 minutes"}, 120),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"x-ms-retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 360),
        (
            {
                "x-ratelimit-remaining-requests": "12",
                "x-ratelimit-reset-requests": "9m",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "17ms",
            },
            0.017,
        ),
        ({"x-ratelimit-remaining-requests": "12", "x-ratelimit-reset-requests": "9m"}, None),
        ({"x-ratelimit-reset-tokens": "6m0s", "retry-after": "2"}, 2),
        ({"ratelimit-reset": "30"}, 30),
        ({"x-ratelimit-limit-requests": "30"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "5 documents"}, None),
        ({}, None),
    ],
)
def test_headers_ask_to_wait(headers: dict[str, str], pause_s: float | None) -> None:
    assert pause_of(headers) == (None if pause_s is None else pytest.approx(pause_s))


INSTANTS: dict[str, Callable[[datetime], str]] = {
    "of HTTP": lambda instant: format_datetime(instant, usegmt=True),
    "of HTTP, of old": lambda instant: instant.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
    "of C": lambda instant: instant.strftime("%a %b %d %H:%M:%S %Y"),
    "of ISO": datetime.isoformat,
    "of ISO, in short": lambda instant: instant.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "in seconds": lambda instant: str(int(instant.timestamp())),
    "in milliseconds": lambda instant: str(int(1000 * instant.timestamp())),
}


@pytest.mark.parametrize("form", INSTANTS)
def test_an_instant_is_waited_for_wherever_this_machine_is(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = INSTANTS[form](datetime.now(UTC) + timedelta(hours=1))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert pause_in(value) == pytest.approx(3600, abs=600)
        assert pause_of({"anthropic-ratelimit-input-tokens-reset": value}) == pytest.approx(3600, abs=600)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("words", "pause_s"),
    [
        ("Rate limit reached for gpt-4o on tokens per min. Please try again in 6m0.5s. Visit https://x.y", 360.5),
        ("Please try again in 429ms.", 0.429),
        ("Please retry after 6 seconds.", 6),
        ("Too many requests, wait 2 minutes", 120),
        ("Please try again with 5 documents", None),
        ("Please try again later. 5m parameters", None),
        ("again " * 1000, None),
        ("", None),
    ],
)
def test_words_ask_to_wait(words: str, pause_s: float | None) -> None:
    assert pause_in_words(words) == (None if pause_s is None else pytest.approx(pause_s))
    assert ServerError.parse({"error": {"message": words}}).pause_s == pause_in_words(words)


@pytest.mark.parametrize(
    ("body", "message", "status", "pause_s"),
    [
        ({"error": "Model x is currently loading", "estimated_time": 20.5}, "Model x is currently loading", None, 20.5),
        ({"error": "Model is overloaded", "error_type": "overloaded"}, "Model is overloaded", 503, None),
        ({"error": {"details": [{"retryDelay": "17s"}], "message": "m", "code": 429}}, "m", 429, 17),
        ({"title": "Too Many Requests", "status": 429}, "Too Many Requests", 429, None),
    ],
)
def test_errors_are_read_as_servers_write_them(body: object, message: str, status: int, pause_s: float) -> None:
    error = ServerError.parse(body)
    assert (error.message, error.status, error.pause_s) == (message, status, pause_s)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'\xef\xbb\xbf {"error": {"message": "no"}} ', "no"),
        (b'data: {"error": {"message": "no"}}\n\n', "no"),
        (b'event: error\ndata: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n', "no"),
        (
            b"<html><head><style>a{}</style><title>502 Bad&nbsp;Gateway</title></head>\n<hr>nginx</html>",
            "502 Bad Gateway nginx",
        ),
        (b"<" * 2000, ""),
        (b"upstream connect error", "upstream connect error"),
        (b"", ""),
    ],
)
def test_a_body_that_explains_a_refusal_is_read(body: bytes, message: str) -> None:
    assert ServerError.parse_body(body).message == message
