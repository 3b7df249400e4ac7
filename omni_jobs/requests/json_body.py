"""Parse a request's body as JSON whose values every part of the platform can carry.

Refusing a body costs little, whatever the body holds: each step is bounded by the body's bytes, and no call holds the
interpreter's lock for long. So a large body is outlined first: its long strings are cut out, and the JSON parser reads
the rest. Long strings that are media in base64 never become ``str``, and nothing is joined or copied whole, because the
kernel takes a tenth of a second to provide the memory for another 64 MiB.
"""

import json
import math
import re
import secrets
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.requests.upload import Upload

SLICE = 256 << 10
"""Bytes that one call works on: it holds the interpreter's lock for half a millisecond."""
_MATCHED = 32 << 10  # bytes that a regular expression reads in half a millisecond

_MAX_DEPTH = 32
_MAX_VALUES = 50_000  # a few bytes of JSON can become a hundred of memory
_MAX_KEYS = 256  # of one object, because each unknown key costs an error
_MOST_DIGITS = 20  # of 64 bits, a sign included
_MAX_OUTSIDE = 8 << 20  # bytes outside of strings: numbers, marks and white space
_TEXT_AS_JSON = 3  # the most bytes of JSON for one byte of UTF-8, but for control characters
_SMALL = 32 << 10  # a body of so few bytes cannot hold too much of anything
_LONG = 64 << 10  # a string of more bytes is long

_MARKS = (b",", b"[", b"{")
_PLAIN = bytes(set(range(ord(" "), ord("~") + 1)) - set(b'"\\'))  # the characters that JSON writes as they are
_PLAIN_LINES = _PLAIN + b"\r\n\t"
_ESCAPES = {  # of media in base64, as encoders of PHP, .NET and Java write them
    rb"\/": b"/", rb"\r": b"\r", rb"\n": b"\n", rb"\t": b"\t",
    rb"\u002B": b"+", rb"\u002b": b"+", rb"\u002F": b"/", rb"\u002f": b"/", rb"\u003D": b"=", rb"\u003d": b"=",
}  # fmt: skip
_LONGEST_ESCAPE = max(map(len, _ESCAPES))
_WITHIN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)

JsonPath = tuple[str | int, ...]


def parse_body(body: bytes | bytearray, max_bytes: int, max_text_bytes: int) -> dict[str, Any]:
    """Return a body's JSON object, with an Upload in the place of each medium above 64 KiB.

    The body must not change while the Uploads are used. In a body above 32 KiB, ``max_text_bytes`` bounds the
    text that is no medium, roughly.

    Raises RequestTooLarge for more than ``max_bytes``, too much text, 50,000 values or 256 keys of an object. Raises
    InvalidRequest for what is no JSON object, a key that is given twice, NaN, infinities, numbers of more than 64
    bits, more than 32 levels, and strings with lone surrogates (they are no UTF-8) or NUL (PostgreSQL keeps none).
    """
    if len(body) > max_bytes:
        raise RequestTooLarge(f"the body has {len(body)} bytes; at most {max_bytes} are taken", field="body")
    long: dict[str, memoryview] = {}
    begin = len(BOM_UTF8) if body.startswith(BOM_UTF8) else 0  # editors and shells of Windows write one
    if len(body) > _SMALL:
        body, long = outline(body, begin, _TEXT_AS_JSON * max_text_bytes)
    elif begin:
        body = body[begin:]
    try:
        tree = json.loads(body.decode(), object_pairs_hook=_object, parse_int=_integer, parse_constant=_NoNumber)
    except UnicodeDecodeError as error:
        where = "" if long else f" at byte {error.start}"
        raise InvalidRequest(f"the body is not UTF-8: {error.reason}{where}", field="body") from None
    except RecursionError:
        raise InvalidRequest(f"the body is nested deeper than {_MAX_DEPTH} levels", field="body") from None
    except ValueError as error:
        # A place in the outline tells a client nothing.
        what = error.msg if long and isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidRequest(f"the body is not valid JSON: {what}", field="body") from None
    if not isinstance(tree, dict):
        raise InvalidRequest("the body must be a JSON object", field="body")
    _check_values(tree, long, max_text_bytes)
    return tree


# A large body's outline.


def outline(body: bytes | bytearray, begins: int, max_text: int) -> tuple[bytes | bytearray, dict[str, memoryview]]:
    """Return the body from ``begins`` on with a name in the place of each long plain string, and these strings by name.

    The outline is JSON if and only if the body is. The strings are views of the body, which must not change.

    Raises RequestTooLarge for more than 50,000 values, 8 MiB outside of strings, or ``max_text`` bytes in others.
    """
    prefix = secrets.token_hex(16)  # no client can guess it
    long: dict[str, memoryview] = {}
    kept: list[bytes | bytearray] = []
    values = strings = outside = 0
    at = kept_to = begins
    rest = len(body) - begins
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
            name = f"{prefix}{len(long)}"
            long[name] = plain
            kept += (body[kept_to:begin], name.encode())
            kept_to = end
            rest -= end - begin
    if rest > _MAX_OUTSIDE + max_text:
        raise RequestTooLarge("the body has more text than is taken", field="body")
    if not long:
        return body[begins:] if begins else body, long
    return b"".join((*kept, body[kept_to:])), long


def _end_of_string(body: bytes | bytearray, begin: int) -> int:
    """Return the index of the quote that closes the string whose contents begin there; the body's end without one."""
    end = body.find(b'"', begin)
    if end < 0:
        return len(body)
    if end == begin or body[end - 1] != ord("\\"):
        return end
    at = begin  # the quote may be escaped, or the backslash before it
    while at < len(body) and body[at] != ord('"'):
        found = _WITHIN.match(body, at, at + _MATCHED)
        if found is None or found.end() == at:  # a backslash at the body's end
            return len(body)
        at = found.end()
    return at


def _plain(body: bytes | bytearray, begin: int, end: int) -> memoryview | None:
    """Return the bytes of the string there, without escapes.

    None unless it is printable ASCII whose only escapes are those of base64's signs, and of tabs and the ends of lines.
    """
    if not any(body[at : min(at + SLICE, end)].translate(None, _PLAIN) for at in range(begin, end, SLICE)):
        return memoryview(body)[begin:end]
    unescaped = bytearray()
    while begin < end:
        stop = min(begin + SLICE, end)
        if stop < end:  # no escape is cut
            stop = max(body.rfind(b"\\", max(begin + 1, stop - _LONGEST_ESCAPE), stop), 0) or stop
        piece = body[begin:stop]
        if any(mark in piece for mark in (b"\r", b"\n", b"\t")):  # as such they are no JSON
            return None
        for escape, meant in _ESCAPES.items():
            piece = piece.replace(escape, meant)
        if piece.translate(None, _PLAIN_LINES):
            return None
        unescaped += piece
        begin = stop
    return memoryview(unescaped)


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


def _integer(digits: str) -> float:
    """Return the number; infinity for one of more digits than 64 bits have, because Python reads not any number."""
    return int(digits) if len(digits) <= _MOST_DIGITS else math.inf


@dataclass(frozen=True, slots=True)
class _NoNumber:
    """What Python's parser takes for a number and JSON does not: NaN, Infinity or -Infinity. It never leaves here."""

    name: str


def _check_values(tree: dict[str, Any], long: dict[str, memoryview], max_text: int) -> None:
    """Check keys, strings, numbers and depth, and put ``long`` strings into their places in the tree, media as Uploads.

    Raises InvalidRequest and RequestTooLarge.
    """
    text_bytes = 0
    waiting: list[tuple[Any, JsonPath]] = [(tree, ())]
    while waiting:
        container, within = waiting.pop()
        if len(within) >= _MAX_DEPTH:
            raise InvalidRequest(f"nested deeper than {_MAX_DEPTH} levels", field=_dotted(within))
        for name, value in container.items() if isinstance(container, dict) else enumerate(container):
            path = (*within, name)
            if isinstance(name, str):
                if name in long:
                    raise InvalidRequest(f"a key has more than {_LONG} bytes", field="body")
                _check_string(name, path)
            if isinstance(value, str):
                if value not in long:
                    _check_string(value, path)
                elif _is_medium(path):
                    container[name] = Upload(encoded=long[value])
                else:
                    text = long[value]  # plain ASCII, which needs no check
                    text_bytes += len(text)
                    if text_bytes > max_text:
                        raise RequestTooLarge(f"at most {max_text} bytes of text are taken", field=_dotted(path))
                    container[name] = str(text, "ascii")
            elif isinstance(value, dict | list):
                waiting.append((value, path))
            elif isinstance(value, _NoNumber):
                raise InvalidRequest(f"{value.name} is no JSON number", field=_dotted(path))
            elif not _fits_64_bits(value):
                raise InvalidRequest("the number takes more than 64 bits", field=_dotted(path))


def _fits_64_bits(value: float | None) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or -(1 << 63) <= value < 1 << 64


def _is_medium(path: JsonPath) -> bool:
    """Return whether media in base64 may stand there."""
    match path:
        case ("messages" | "input", int(), "content", int(), "input_audio", "data" | "url"):
            return True
        case ("messages" | "input", int(), "content", int(), "image_url" | "video_url", "url"):
            return True
        case ("input", int(), "content", int(), "image_url"):  # of OpenAI's responses
            return True
        case ("input_reference", "image_url"):  # of OpenAI's videos
            return True
    return path == ("prompt_embeds", "data")


def _check_string(value: str, path: JsonPath) -> None:
    if "\0" in value:
        raise InvalidRequest("the text contains the character U+0000", field=_dotted(path))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = ord(value[error.start])
            raise InvalidRequest(
                f"the text contains half a surrogate pair, U+{code:04X}", field=_dotted(path)
            ) from None


def _dotted(path: JsonPath) -> str:
    return ".".join(_shown(str(name)) for name in path)


def _shown(name: str) -> str:
    """Return a client's key as an error shows it: cut, and without characters that cannot be shown."""
    return name[:64].encode("ascii" if "\0" in name else "utf-8", "backslashreplace").decode().replace("\0", "\\x00")


# The way back.


_COMPACT = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical(value: Any) -> Iterator[bytes | memoryview]:
    """Yield ``value`` as JSON in ASCII with sorted keys and no spaces, in pieces, for the request's digest.

    An Upload of bytes as they are is no JSON, and differs from all JSON.
    """
    if isinstance(value, dict):
        for number, name in enumerate(sorted(value)):
            yield b"%b%b:" % (b"," if number else b"{", _COMPACT(name).encode())
            yield from canonical(value[name])
        yield b"}" if value else b"{}"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield b"," if number else b"["
            yield from canonical(item)
        yield b"]" if value else b"[]"
    elif isinstance(value, Upload):
        if value.encoded is None:
            yield from (b"\0", value.data, b"\0")
        else:
            yield from canonical(value.encoded) if isinstance(value.encoded, str) else (b'"', value.encoded, b'"')
    elif isinstance(value, str) and len(value) > SLICE:
        yield b'"'
        for at in range(0, len(value), SLICE):
            yield _COMPACT(value[at : at + SLICE])[1:-1].encode()
        yield b'"'
    else:
        yield _COMPACT(value).encode()
