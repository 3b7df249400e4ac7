"""Which failed calls are repeated, and when; and what the client makes of a failed answer."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx2

from omni_jobs.client.steps import HttpRequest, Pause, Steps, sent
from omni_jobs.errors import NotFound, OmniJobsError, ServerUnavailable
from omni_jobs.servers import without_user

PAUSES_S = (0.2, 0.5, 1.0, 2.0)  # before each repetition of a call
WAIT_PAUSES_S = (*PAUSES_S, *[4.0] * 14)  # of who waits for a job: a server is started anew meanwhile
LONGEST_RETRY_AFTER_S = 10  # the client waits no longer for the server, but raises the error, such as TooManyJobs

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")


def answered(
    request: HttpRequest, pauses_s: Iterable[float] | None = None, *, deadline: float = math.inf
) -> Steps[httpx2.Response]:
    """Return a successful answer. Repeat the request while that may help, so it must be safe to repeat.

    ``pauses_s`` are those before each repetition, by default PAUSES_S; none ends after ``deadline``, by the monotonic
    clock.
    """
    pauses = iter(PAUSES_S if pauses_s is None else pauses_s)
    while True:
        try:
            return (yield from answered_once(request))
        except OmniJobsError as error:
            pause = pause_before_retry(error, next(pauses, None))
            if pause is None or time.monotonic() + pause > deadline:
                raise
        yield Pause(pause)


def answered_once(request: HttpRequest) -> Steps[httpx2.Response]:
    """Return a successful answer, and raise the error of any other."""
    response = yield from sent(request)
    if not response.is_success:
        raise error_of(response)
    return response


def error_of(response: httpx2.Response) -> OmniJobsError:
    """Return the error of a failed response that was read, as an instance of the class that its code names.

    Another body, such as a proxy's, gives ServerUnavailable for 502 to 504, NotFound for 404, or else OmniJobsError.
    Its ``retry_after_s`` is what the response asks for. A traceback of the server's error shows the id of the request,
    by which the server's log lines can be found.
    """
    try:
        error = OmniJobsError.from_dict(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        error = _error_of_another(response)
    else:
        if (request_id := response.headers.get("X-Request-Id")) is not None:
            error.add_note(f"X-Request-Id: {request_id}")
    asked = retry_after(response.headers)
    if asked is not None:
        error.retry_after_s = asked
    return error


def _error_of_another(response: httpx2.Response) -> OmniJobsError:
    message = f"HTTP {response.status_code} {response.reason_phrase} from {without_user(str(response.request.url))}"
    if response.status_code in (502, 503, 504):
        return ServerUnavailable(message)
    return NotFound(message) if response.status_code == 404 else OmniJobsError(message)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which an answer asks for another try; None if it asks for nothing that can be read.

    ``retry-after-ms`` counts before ``Retry-After``, which has seconds or an HTTP date. A date is compared with the
    answer's own ``Date``, because the clocks of two machines differ.
    """
    milliseconds = headers.get("retry-after-ms", "").strip()
    if _NUMBER.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    asked = headers.get("retry-after", "").strip()
    if _NUMBER.fullmatch(asked):
        return float(asked)
    due = _moment(asked)
    if due is None:
        return None
    now = _moment(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (due - now).total_seconds())


def _moment(text: str) -> datetime | None:
    """Return the time that an HTTP date names; None for anything else."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def pause_before_retry(error: OmniJobsError, pause: float | None) -> float | None:
    """Return the seconds until a failed call is repeated; None if it is not.

    ``pause`` is the next one of the call, None after the last. It is longer where the server asks for more, but where
    that is above LONGEST_RETRY_AFTER_S, the caller decides. Chance spreads the clients that an outage has brought into
    step; none comes sooner than the server asked.
    """
    asked = error.retry_after_s or 0.0
    if pause is None or not error.retryable or asked > LONGEST_RETRY_AFTER_S:
        return None
    return max(pause * random.uniform(0.75, 1.0), asked * random.uniform(1.0, 1.25))  # noqa: S311
