"""``pause_before_retry``: says whether the client repeats a failed call, and after which pause."""

from omni_jobs.errors import LimitReached, OmniJobsError

LONGEST_RETRY_AFTER_S = 10  # the client waits no longer for room, but raises the error, such as TooManyJobs


def pause_before_retry(error: OmniJobsError, pause: float | None) -> float | None:
    """Return the seconds until a failed call is repeated; None if it is not.

    ``pause`` is the next one of the call, None after the last. A limit names its own pause.
    """
    if pause is not None and isinstance(error, LimitReached):
        return error.retry_after_s if error.retry_after_s <= LONGEST_RETRY_AFTER_S else None
    return pause if error.retryable else None
