"""A request's bytes → JSON whose strings every part of the platform can carry.

Whatever a body holds, it costs little to refuse: each step is bounded by the body's bytes, and no
call of more than a few milliseconds keeps the other threads from the interpreter. That is why a large
body is outlined first: its long strings are cut out, and JSON reads the rest. Those that are media in
base64 are never made into strings: nothing is joined or copied whole, because the kernel takes a
tenth of a second to find room for 64 MiB.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from omni_jobs.errors import InvalidRequest, RequestTooLarge

__all__ = ["SLICE", "Long", "canonical", "parse_body"]

SLICE = 256 << 10
"""Bytes that one call works on: half a millisecond in which no other thread runs."""
_MATCHED = 32 << 10  # bytes of it that a regular expression does in that time

_MAX_DEPTH = 32
_MAX_VALUES = 50_000  # a few bytes of JSON can become a hundred of memory
_MAX_KEYS = 256  # of one object: each that is unknown costs an error
_MAX_OUTSIDE = 8 << 20  # bytes outside the strings: numbers, marks and white space
_TEXT_AS_JSON = 3  # bytes that JSON writes for one of UTF-8, at most, but for control characters
_SMALL = 32 << 10  # cannot hold too much of anything
_LONG = 64 << 10

_MARKS = (b",", b"[", b"{")
_PLAIN = bytes(set(range(ord(" "), ord("~") + 1)) - set(b'"\\'))  # what JSON writes as it is
_WITHIN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:")

Path = tuple["Path", str | int] | None
Long = Mapping[str, memoryview]
"""Encoded media by the names that stand in their place in the tree, which no client can write: ASCII, as it stands
between the quotes, and without escapes."""


def parse_body(
    body: bytes | bytearray, max_bytes: int, max_text_bytes: int | None = None
) -> tuple[dict[str, Any], Long]:
    """The JSON object, and the long strings that are not in it because they are media. The body must stay as it is.

    Raises InvalidRequest or RequestTooLarge. Refused beyond what JSON itself forbids: a key given twice, NaN and
    infinities, more than 32 levels, 50,000 values or 256 keys of an object, and strings with lone surrogates (no
    UTF-8) or NUL (PostgreSQL keeps none). ``max_text_bytes`` bounds all that is no medium.
    """
    if len(body) > max_bytes:
        raise RequestTooLarge(f"the body has {len(body)} bytes; at most {max_bytes} are taken", field="body")
    long: dict[str, memoryview] = {}
    if len(body) > _SMALL:
        body, long = _outline(body, max_bytes if max_text_bytes is None else _TEXT_AS_JSON * max_text_bytes)
    try:
        tree = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        where = "" if long else f" at byte {error.start}"
        raise InvalidRequest(f"the body is not UTF-8: {error.reason}{where}", field="body") from None
    except RecursionError:
        raise InvalidRequest(f"the body is nested deeper than {_MAX_DEPTH} levels", field="body") from None
    except ValueError as error:
        # Where in the outline tells a client nothing.
        what = error.msg if long and isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidRequest(f"the body is not valid JSON: {what}", field="body") from None
    if not isinstance(tree, dict):
        raise InvalidRequest("the body must be a JSON object", field="body")
    _check_strings(tree, long, max_text_bytes)
    return tree, long


# A large body's outline.


def _outline(body: bytes | bytearray, max_text: int) -> tuple[bytes | bytearray, dict[str, memoryview]]:
    """The body with a name in the place of each long string of plain ASCII, and those strings by their names.

    Counts the values on the way. A body that is no JSON has an outline that is none either.
    """
    prefix = secrets.token_hex(16)  # no client can write it
    long: dict[str, memoryview] = {}
    kept: list[bytes | bytearray] = []
    kept_to = values = strings = outside = 0
    at, rest = 0, len(body)
    while at < len(body):
        stop = min(at + SLICE, len(body))
        begin = body.find(b'"', at, stop)
        end = stop if begin < 0 else begin
        values += sum(body.count(mark, at, end) for mark in _MARKS)
        strings += begin >= 0
        outside += end - at
        if values > _MAX_VALUES or strings > 2 * _MAX_VALUES:
            raise RequestTooLarge(f"the body has more than {_MAX_VALUES} values", field="body")
        if outside > _MAX_OUTSIDE:
            raise RequestTooLarge(f"the body has more than {_MAX_OUTSIDE} bytes outside its strings", field="body")
        if begin < 0:
            at = stop
            continue
        begin += 1
        end = _end_of_string(body, begin)
        at = end + 1
        if end - begin > _LONG:
            plain = _plain(body, begin, end)
            if plain is None:
                continue
            if _COLON.match(body, at, at + _MATCHED) is not None:
                raise InvalidRequest(f"a key has more than {_LONG} bytes", field="body")
            name = f"{prefix}{len(long)}"
            long[name] = plain
            kept += (body[kept_to:begin], name.encode())
            kept_to = end
            rest -= end - begin
    if rest > _MAX_OUTSIDE + max_text:
        raise RequestTooLarge("the body has more text than is taken", field="body")
    if not long:
        return body, long
    return b"".join((*kept, body[kept_to:])), long


def _end_of_string(body: bytes | bytearray, begin: int) -> int:
    """Where the quote stands that closes the string whose contents begin there; the body's end without one."""
    end = _found(body, b'"', begin)
    if end == begin or end == len(body) or body[end - 1] != ord("\\"):
        return end
    at = begin  # the quote may be escaped, or the backslash before it
    while at < len(body) and body[at] != ord('"'):
        found = _WITHIN.match(body, at, at + _MATCHED)
        if found is None or found.end() == at:  # a backslash at the body's end
            return len(body)
        at = found.end()
    return at


def _found(body: bytes | bytearray, what: bytes, at: int) -> int:
    """Where this byte stands next, or the body's end."""
    while at < len(body):
        stop = min(at + SLICE, len(body))
        if (found := body.find(what, at, stop)) >= 0:
            return found
        at = stop
    return at


def _plain(body: bytes | bytearray, begin: int, end: int) -> memoryview | None:
    """The string that JSON writes so, if it is ASCII that needs no escape; PHP escapes the slashes of base64."""
    unescaped: bytearray | None = None
    at = begin
    while at < end:
        stop = min(at + SLICE, end)
        if stop < end and body[stop - 1] == ord("\\"):
            stop += 1
        piece = body[at:stop]
        if piece.translate(None, _PLAIN):
            piece = piece.replace(b"\\/", b"/")
            if piece.translate(None, _PLAIN):
                return None
            if unescaped is None:
                unescaped = bytearray()
                for earlier in range(begin, at, SLICE):
                    unescaped += body[earlier : min(earlier + SLICE, at)]
        if unescaped is not None:
            unescaped += piece
        at = stop
    return memoryview(body)[begin:end] if unescaped is None else memoryview(unescaped)


# The tree.


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_KEYS:
        raise RequestTooLarge(f"an object has {len(pairs)} keys; at most {_MAX_KEYS} are taken", field="body")
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidRequest("this key is given twice", field=_shown(name))
            seen.add(name)
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check_strings(tree: dict[str, Any], long: dict[str, memoryview], max_text: int | None) -> None:
    """Raises InvalidRequest and RequestTooLarge; puts the ``long`` strings that are no media where they belong."""
    text_bytes = 0
    waiting: list[tuple[Any, Path, int]] = [(tree, None, 1)]
    while waiting:
        value, path, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise InvalidRequest(f"nested deeper than {_MAX_DEPTH} levels", field=_dotted(path))
        if isinstance(value, dict):
            for name in value:
                _check_string(name, path, name)
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, str):
                if item not in long:
                    _check_string(item, path, name)
                elif not _is_medium(path, name):
                    text = long.pop(item)  # plain: nothing of it is to be checked
                    text_bytes += len(text)
                    if max_text is not None and text_bytes > max_text:
                        raise RequestTooLarge(
                            f"at most {max_text} bytes of text are taken", field=_dotted((path, name))
                        )
                    value[name] = str(text, "ascii")
            elif isinstance(item, dict | list):
                waiting.append((item, (path, name), depth + 1))


def _is_medium(path: Path, name: str | int) -> bool:
    """Whether media in base64 may stand there."""
    match _keys((path, name)):
        case ["messages", int(), "content", int(), "input_audio", "data"]:
            return True
        case ["messages", int(), "content", int(), "image_url" | "video_url", "url"]:
            return True
        case ["prompt_embeds", "data"]:
            return True
    return False


def _check_string(value: str, path: Path, name: str | int) -> None:
    if "\0" in value:
        raise InvalidRequest("the text contains the character U+0000", field=_dotted((path, name)))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = ord(value[error.start])
            raise InvalidRequest(
                f"the text contains half a surrogate pair, U+{code:04X}", field=_dotted((path, name))
            ) from None


def _dotted(path: Path) -> str:
    return ".".join(_shown(str(name)) for name in _keys(path))


def _keys(path: Path) -> list[str | int]:
    """From the outermost to the innermost."""
    names: list[str | int] = []
    while path is not None:
        path, name = path
        names.append(name)
    return names[::-1]


def _shown(name: str) -> str:
    """A client's key, fit for an error."""
    return name[:64].encode("ascii" if "\0" in name else "utf-8", "backslashreplace").decode().replace("\0", "\\x00")


# The way back.


_COMPACT = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical(value: Any, long: Long) -> Iterator[bytes | memoryview]:
    """``value`` as JSON in ASCII with sorted keys and no spaces, in pieces; ``long``: what ``parse_body`` left out."""
    if _length(value, long) <= SLICE:
        yield _COMPACT(value).encode()
    elif isinstance(value, dict):
        for number, name in enumerate(sorted(value)):
            yield b"%b%b:" % (b"," if number else b"{", _COMPACT(name).encode())
            yield from canonical(value[name], long)
        yield b"}"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield b"," if number else b"["
            yield from canonical(item, long)
        yield b"]"
    else:
        yield b'"'
        if value in long:
            for at in range(0, len(long[value]), SLICE):
                yield long[value][at : at + SLICE]
        else:
            for at in range(0, len(value), SLICE):
                yield _written(value[at : at + SLICE])
        yield b'"'


def _written(text: str) -> bytes:
    """As JSON writes it within its quotes: long plain text as it stands."""
    if text.isascii():
        plain = text.encode()
        if not plain.translate(None, _PLAIN):
            return plain
    return _COMPACT(text)[1:-1].encode()


def _length(value: Any, long: Long) -> int:
    """About as many characters as it has; the keys of an object are few. More than SLICE where it holds a long one."""
    if isinstance(value, str):
        return SLICE + 1 if value in long else len(value)
    if isinstance(value, dict):
        value = value.values()
    return sum(_length(item, long) for item in value) if isinstance(value, Iterable) else 1
