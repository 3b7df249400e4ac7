"""``ServerError``: what a server says went wrong, in an answer of any status; read leniently, as it only explains."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING, Any

import orjson

from workers.runners.remote.asked_pause import pause_in, pause_in_words

if TYPE_CHECKING:
    from workers.runners.remote.document import Document

_MOST_BYTES = 2000  # of a text that is no JSON, and of a string that a document's outline cut out
_MOST_DETAILS = 20
_EVENT = re.compile(rb"(?:event: ?\w*\r?\n)?data: ?([^\r\n]*)")
_STATUS = re.compile("[45][0-9]{2}")
_STATUSES = ("code", "status", "status_code", "statusCode")
_NAMES = ("code", "type", "error_type", "status")
_MESSAGES = (
    *("message", "detail", "msg", "error_description", "reason"),
    *("title", "Message", "error_message", "error_msg", "faultstring"),
)
_PAUSES = (
    ("retry_after_ms", 1e-3),
    ("retry_after", 1.0),
    ("retryAfter", 1.0),
    ("retryDelay", 1.0),
    ("retry_delay", 1.0),
    ("estimated_time", 1.0),  # Hugging Face's, while a model is loaded
)
_TAGS = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^>]*>?", re.DOTALL | re.IGNORECASE)

# What servers that name no status write instead; the first that is found counts.
_WORDS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile("rate.?limit|too.?many|exhausted|throttl|insufficient.?quota"), 429),
    (re.compile("overload|unavailable|busy|no.?capacity"), 503),
    (re.compile("timeout|timed.?out|deadline"), 504),
    (re.compile("server.?error|internal"), 500),
    (re.compile("authentication|unauthenticated|api.?key"), 401),
    (re.compile("permission|forbidden"), 403),
    (re.compile("not.?found"), 404),
    (re.compile("invalid|bad.?request|context.?length|unsupported|polic|safety|moderation|content.?filter"), 400),
)


@dataclass(frozen=True, slots=True)
class ServerError:
    """The error of an OpenAI-compatible server.

    message  its words
    param    the request's field that it blames
    code     its name of the error
    status   the status of HTTP that it names, or that its words mean: 400 to 599; None: none
    pause_s  for how long it asks to be left alone
    """

    message: str = ""
    param: str | None = None
    code: str | None = None
    status: int | None = None
    pause_s: float | None = None

    @classmethod
    def parse(cls, value: Any, long: Mapping[str, memoryview] | None = None) -> "ServerError":
        """Return the error that a JSON value holds, of the strings cut out ``long``; an empty one if it holds none."""
        outer = value[0] if isinstance(value, list) and value else value
        if not isinstance(outer, dict):
            return cls(message=_short(outer, long) or "")
        inner = outer.get("error") or _first(outer.get("errors")) or outer
        if isinstance(inner, str):
            inner = {"message": inner}
        if not isinstance(inner, dict):
            inner = outer
        holders = (inner, outer)
        named = [_short(holder.get(name), long) for holder in holders for name in _NAMES]
        message = next(_messages(holders, long), "")
        pause_s = _pause_s(holders)
        return cls(
            message=message,
            param=_short(inner.get("param"), long),
            code=_short(inner.get("code"), long) or _short(inner.get("type"), long),
            status=_status(holders, " ".join(name for name in named if name)),
            pause_s=pause_in_words(message) if pause_s is None else pause_s,
        )

    @classmethod
    def told_by(cls, document: "Document", *, is_error: bool) -> "ServerError | None":
        """Return the error that the document of a successful answer tells; None: it tells none.

        One with an id and a status is a state, and left to its endpoint. ``is_error``: it surely is an error.
        """
        value = document.value[0] if isinstance(document.value, list) and document.value else document.value
        if is_error or _is_error(value):
            return cls.parse(value, document.long)
        of_choice = document.peek("choices", 0, "error")
        return cls.parse({"error": of_choice}, document.long) if _is_given(of_choice) else None

    @classmethod
    def parse_body(cls, body: bytes | bytearray) -> "ServerError":
        """Return the error that an answer's body holds, be it an event's; one with its text if the body is no JSON."""
        body = bytes(body).removeprefix(BOM_UTF8).strip()
        data = _EVENT.match(body)
        try:
            return cls.parse(orjson.loads(body if data is None else data[1]))
        except orjson.JSONDecodeError:
            text = body[:_MOST_BYTES].decode("utf-8", errors="replace")
            message = " ".join(unescape(_TAGS.sub(" ", text)).split()) if body.startswith(b"<") else text
            return cls(message=message, pause_s=pause_in_words(message))


def _is_error(value: Any) -> bool:
    if not isinstance(value, dict) or (isinstance(value.get("status"), str) and isinstance(value.get("id"), str)):
        return False
    return (
        "error" in (value.get("object"), value.get("type"))
        or _is_given(value.get("error"))
        or _is_given(value.get("errors"))
    )


def _is_given(error: Any) -> bool:
    """Return whether an ``error`` is one; servers also write null, false, and an object of nulls."""
    return any(error.values()) if isinstance(error, dict) else bool(error)


def _first(errors: Any) -> Any:
    return errors[0] if isinstance(errors, list) and errors else None


def _short(value: Any, long: Mapping[str, memoryview] | None) -> str | None:
    """Return a string, or a number as one."""
    if isinstance(value, str):
        return str(long[value][:_MOST_BYTES], "ascii") if long and value in long else value
    return str(value) if type(value) in (int, float) else None


def _messages(holders: tuple[dict[str, Any], ...], long: Mapping[str, memoryview] | None) -> Iterator[str]:
    for holder in holders:
        for name in _MESSAGES:
            value = holder.get(name)
            if isinstance(value, dict | list) and value:  # FastAPI's detail
                yield orjson.dumps(value)[:_MOST_BYTES].decode(errors="replace")
            elif text := _short(value, long):
                yield text


def _status(holders: tuple[dict[str, Any], ...], words: str) -> int | None:
    for holder in holders:
        for name in _STATUSES:
            value: Any = holder.get(name)
            if type(value) in (int, str) and _STATUS.fullmatch(str(value)):
                return int(value)
    words = words[:_MOST_BYTES].lower()
    return next((status for pattern, status in _WORDS if pattern.search(words)), None)


def _pause_s(holders: tuple[dict[str, Any], ...]) -> float | None:
    for holder in holders:
        details = holder.get("details")
        within = details[:_MOST_DETAILS] if isinstance(details, list) else ()
        for each in (holder, holder.get("metadata"), *within):
            for name, scale in _PAUSES if isinstance(each, dict) else ():
                asked_s = pause_in(str(each[name])) if type(each.get(name)) in (int, float, str) else None
                if asked_s is not None:
                    return asked_s * scale
    return None
