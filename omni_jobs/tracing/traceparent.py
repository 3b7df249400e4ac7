"""``traceparent``: W3C's name of a span within its trace (Trace Context, level 1), as jobs keep it."""

import re
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

HEADER: Final = b"traceparent"
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

of_request: ContextVar[str | None] = ContextVar("traceparent", default=None)
"""What the client of the HTTP request named for which this code runs."""


def traceparent_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the span that a request's headers name; None unless they name one, once and in W3C's form.

    A later version than 00 may have more behind the flags; that is left out.
    """
    given = [value for name, value in headers if name == HEADER]
    if len(given) != 1:
        return None
    text = given[0][:55].decode("latin-1")
    is_plain = len(given[0]) == 55 or (given[0][:2] != b"00" and given[0][55:56] == b"-")
    return text if is_plain and _FORM.fullmatch(text) else None


def trace_of(traceparent: str) -> str:
    """Return the id of the trace, 32 hex digits."""
    return traceparent[3:35]


def span_of(traceparent: str) -> str:
    """Return the id of the span, 16 hex digits."""
    return traceparent[36:52]
