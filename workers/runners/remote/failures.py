"""What can go wrong between a remote stage and its server, as errors that say who is to blame.

Setback               nobody's fault but the server's or the network's: the same request may be answered later
RemoteUnavailable     setbacks went on for longer than a stage run waits; another attempt may do better
InvalidRequest, RequestTooLarge, ModelError     final: the server refuses this input, or its answer is unusable
"""

import re
from collections.abc import Collection

from omni_jobs.errors import InvalidRequest, ModelError, OmniJobsError, RequestTooLarge
from workers.runners.remote.server_error import ServerError

_MAX_MESSAGE = 500  # characters of what the server says
_NOT_READABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
# An account or a key that ran out is the operator's to renew, and the jobs can wait for it.
_WAITED_FOR = (401, 402, 407, 429, 503, 529)
_LOST = (408, 409, 424, 425)  # beside those from 500 on
_PROMPT = ("messages", "input", "prompt", "file")  # where the servers' APIs have what a job says


class Setback(Exception):
    """An exchange that came to no end, for which the request is not to blame.

    reason       for people
    unreachable  no connection: there is no use in another request before the server is back
    counts       the request may have caused it, so it may happen only so often
    pause_s      for how long the server asks to be left alone
    """

    def __init__(
        self, reason: str, *, unreachable: bool = False, counts: bool = False, pause_s: float | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unreachable = unreachable
        self.counts = counts
        self.pause_s = pause_s


def broken_off() -> Setback:
    """Return the setback of an answer of which the end is missing."""
    return Setback("the answer broke off before its end", counts=True)


def readable(text: str, secret: str | None) -> str:
    """Return a server's words without the key, in one line, and not too many of them."""
    if secret:
        text = text.replace(secret, "[key]")
    text = _NOT_READABLE.sub(" ", text).strip()
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}…"


def failure_of_status(
    status: int, error: ServerError, parameters: Collection[str], stage: str
) -> Setback | OmniJobsError:
    """Return what an answer with a status that is no success means.

    The message of ``error`` is readable; ``parameters`` are the names of the stage's.
    """
    said = f"the server answers {status}" + (f": {error.message}" if error.message else "")
    if status in _WAITED_FOR:
        return Setback(said, pause_s=error.pause_s)
    if status >= 500 or status in _LOST:
        return Setback(said, counts=True, pause_s=error.pause_s)
    if 300 <= status < 400:
        return ModelError(f"the server answers {status}, a redirect, and redirects are not followed")
    if status == 413:
        return RequestTooLarge(said)
    if error.param == "model":  # the stage config's, and not the job's
        return ModelError(said, field="engine.model")
    if error.param and status in (400, 422):
        return InvalidRequest(said, field=_field(error.param, parameters, stage))
    return ModelError(said)


def _field(param: str, parameters: Collection[str], stage: str) -> str:
    """Return a job's name for what the server calls ``param``."""
    path = re.sub(r"\[(\w+)\]", r".\1", readable(param, None))[:128]
    name, _, rest = path.partition(".")
    if name in ("max_completion_tokens", "max_output_tokens"):
        name = "max_tokens"
    if name in parameters:
        return f"stages.{stage}.{name}"
    if name in _PROMPT:
        return f"messages.{rest}" if name == "messages" and rest else "messages"
    return path


def bad_answer(what: str) -> ModelError:
    """Return the error for an answer that cannot be used; ``what`` is wrong with it."""
    return ModelError(f"the server's answer cannot be used: {what}")
