"""What the client makes of a failed call: the error that the server met, and whether the call is repeated."""

import httpx2

from omni_jobs.errors import LimitReached, NotFound, OmniJobsError, ServerUnavailable
from omni_jobs.servers import without_user

LONGEST_RETRY_AFTER_S = 10  # the client waits no longer for room, but raises the error, such as TooManyJobs


def error_of(response: httpx2.Response) -> OmniJobsError:
    """Return the error of a failed response that was read, as an instance of the class that its code names.

    Another body, such as a proxy's, gives ServerUnavailable for 502 to 504, NotFound for 404, or else OmniJobsError.
    A traceback of the server's error shows the id of the request, by which the server's log lines can be found.
    """
    try:
        error = OmniJobsError.from_dict(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code} {response.reason_phrase} from {without_user(str(response.request.url))}"
        if response.status_code in (502, 503, 504):
            return ServerUnavailable(message)
        return NotFound(message) if response.status_code == 404 else OmniJobsError(message)
    retry_after = response.headers.get("Retry-After", "")
    if isinstance(error, LimitReached) and retry_after.isdecimal():
        error.retry_after_s = int(retry_after)
    if (request_id := response.headers.get("X-Request-Id")) is not None:
        error.add_note(f"X-Request-Id: {request_id}")
    return error


def pause_before_retry(error: OmniJobsError, pause: float | None) -> float | None:
    """Return the seconds until a failed call is repeated; None if it is not.

    ``pause`` is the next one of the call, None after the last. A limit names its own pause.
    """
    if pause is not None and isinstance(error, LimitReached):
        return error.retry_after_s if error.retry_after_s <= LONGEST_RETRY_AFTER_S else None
    return pause if error.retryable else None
