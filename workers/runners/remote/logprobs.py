"""``logprobs_of``: the logprobs of a chat completion's tokens, or of those of a piece of one."""

import math
from collections.abc import Iterator
from typing import Any, Final

from workers.runners.remote.document import Document
from workers.runners.remote.failures import bad_answer

MOST: Final = 100_000
"""Tokens with a logprob, alternatives among them, that an answer may have."""

_LEAST: Final = -9999.0  # OpenAI's for what is next to impossible
_MOST_BYTES: Final = 1024  # of a token


def logprobs_of(document: Document) -> Iterator[dict[str, Any]]:
    """Yield {"token", "logprob", "bytes", "top_logprobs"} of each token of the first choice. Raises ModelError."""
    given = document.peek("choices", 0, "logprobs", "content")
    for entry in given if isinstance(given, list) else ():
        likeliest = entry.get("top_logprobs") if isinstance(entry, dict) else None
        top = [_entry(each) for each in likeliest] if isinstance(likeliest, list) else []
        yield {**_entry(entry), "top_logprobs": top}


def _entry(entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise bad_answer("choices.0.logprobs.content: no object")
    token, logprob, data = entry.get("token"), entry.get("logprob"), entry.get("bytes")
    if not isinstance(token, str) or len(token) > _MOST_BYTES:
        raise bad_answer("choices.0.logprobs.content: no token")
    if isinstance(logprob, bool) or not isinstance(logprob, int | float) or not math.isfinite(logprob):
        raise bad_answer("choices.0.logprobs.content: no logprob")
    is_bytes = (
        isinstance(data, list)
        and len(data) <= _MOST_BYTES
        and all(type(each) is int and 0 <= each < 256 for each in data)
    )
    return {
        "token": token,
        "logprob": max(float(logprob), _LEAST),
        "bytes": data if is_bytes else list(token.encode()),
    }
