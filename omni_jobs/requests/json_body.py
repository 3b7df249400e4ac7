"""The bytes of a request's body become JSON whose values every part of the platform can carry.

Refusing a body costs little, whatever the body holds: each step is bounded by the body's bytes, and no call holds the
interpreter's lock for more than a few milliseconds. So a large body is outlined first: its long strings are cut out,
and the JSON parser reads the rest. Long strings that are media in base64 never become ``str``, and nothing is joined or
copied whole, because the kernel takes a tenth of a second to provide 64 MiB.
"""

import json
import math
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from omni_jobs.errors import InvalidRequest, RequestTooLarge

SLICE = 256 << 10
"""Bytes that one call works on: it holds the interpreter's lock for half a millisecond."""
_MATCHED = 32 << 10  # bytes that a regular expression reads in half a millisecond

_MAX_DEPTH = 32
_MAX_VALUES = 50_000  # a few bytes of JSON can become a hundred of memory
_MAX_KEYS = 256  # of one object, because each unknown key costs an error
_MAX_OUTSIDE = 8 << 20  # bytes outside of strings: numbers, marks and white space
_TEXT_AS_JSON = 3  # JSON writes at most so many bytes for one byte of UTF-8, but for control characters
_SMALL = 32 << 10  # a body of so few bytes cannot hold too much of anything
_LONG = 64 << 10  # a string of more bytes is long

_MARKS = (b",", b"[", b"{")
_PLAIN = bytes(set(range(ord(" "), ord("~") + 1)) - set(b'"\\'))  # the characters that JSON writes as they are
_WITHIN = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)

Path = tuple["Path", str | int] | None
Long = Mapping[str, memoryview]
"""Media in base64 by the names that stand in their places in the tree. No client can write such a name.

A value is the ASCII between the quotes, without escapes."""


def parse_body(
    body: bytes | bytearray, max_bytes: int, max_text_bytes: int | None = None
) -> tuple[dict[str, Any], Long]:
    """Return the JSON object, and apart from it the long strings that are media.

    The body must not change while the media are used. ``max_text_bytes`` bounds the text that is no medium, roughly: it
    does not bound the text of a body of 32 KiB and less.

    Raises InvalidRequest and RequestTooLarge. Beyond what JSON forbids it refuses a key that is given twice, NaN,
    infinities, numbers that take more than 64 bits, more than 32 levels, 50,000 values, 256 keys of an object, and
    strings with lone surrogates (they are no UTF-8) or NUL (PostgreSQL keeps none).
    """
    if len(body) > max_bytes:
        raise RequestTooLarge(f"the body has {len(body)} bytes; at most {max_bytes} are taken", field="body")
    long: dict[str, memoryview] = {}
    if len(body) > _SMALL:
        body, long = _outline(body, max_bytes if max_text_bytes is None else _TEXT_AS_JSON * max_text_bytes)
    try:
        tree = json.loads(
            body.decode(),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
        )
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
    return tree, long


# A large body's outline.


def _outline(body: bytes | bytearray, max_text: int) -> tuple[bytes | bytearray, dict[str, memoryview]]:
    """Return the body with a name in the place of each long string of plain ASCII, and these strings by their names.

    It counts the values as well. The outline is JSON if and only if the body is.
    """
    prefix = secrets.token_hex(16)  # no client can guess it
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
    """Return the index of the quote that closes the string whose contents begin there; the body's end without one."""
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
    """Return the index at which this byte stands next; the body's end where it does not."""
    while at < len(body):
        stop = min(at + SLICE, len(body))
        if (found := body.find(what, at, stop)) >= 0:
            return found
        at = stop
    return at


def _plain(body: bytes | bytearray, begin: int, end: int) -> memoryview | None:
    """Return the bytes of the string there, without escapes.

    None unless it is printable ASCII whose only escape is ``\\/``, as PHP writes the slashes of base64.
    """
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


def _check_values(tree: dict[str, Any], long: dict[str, memoryview], max_text: int | None) -> None:
    """Check keys, strings, numbers and depth, and put ``long`` strings that are no media into their places in the tree.

    Raises InvalidRequest and RequestTooLarge.
    """
    text_bytes = 0
    waiting: list[tuple[Any, Path, int]] = [(tree, None, 1)]
    while waiting:
        value, path, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise InvalidRequest(f"nested deeper than {_MAX_DEPTH} levels", field=_dotted(path))
        if isinstance(value, dict):
            for name in value:
                if name in long:
                    raise InvalidRequest(f"a key has more than {_LONG} bytes", field="body")
                _check_string(name, path, name)
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, str):
                if item not in long:
                    _check_string(item, path, name)
                elif not _is_medium(path, name):
                    text = long.pop(item)  # plain ASCII, which needs no check
                    text_bytes += len(text)
                    if max_text is not None and text_bytes > max_text:
                        raise RequestTooLarge(
                            f"at most {max_text} bytes of text are taken", field=_dotted((path, name))
                        )
                    value[name] = str(text, "ascii")
            elif isinstance(item, dict | list):
                waiting.append((item, (path, name), depth + 1))
            elif isinstance(item, int | float) and not _fits_64_bits(item):
                raise InvalidRequest("the number takes more than 64 bits", field=_dotted((path, name)))


def _fits_64_bits(number: float) -> bool:
    if isinstance(number, int):
        return -(1 << 63) <= number < 1 << 64
    return math.isfinite(number)


def _is_medium(path: Path, name: str | int) -> bool:
    """Return whether media in base64 may stand there."""
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
    """Return the keys and indices from the outermost to the innermost."""
    names: list[str | int] = []
    while path is not None:
        path, name = path
        names.append(name)
    return names[::-1]


def _shown(name: str) -> str:
    """Return a client's key as an error shows it: cut, and without characters that cannot be shown."""
    return name[:64].encode("ascii" if "\0" in name else "utf-8", "backslashreplace").decode().replace("\0", "\\x00")


# The way back.


_COMPACT = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical(value: Any, long: Long) -> Iterator[bytes | memoryview]:
    """Yield ``value`` as JSON in ASCII with sorted keys and no spaces, in pieces.

    ``long``: the long strings that ``parse_body`` returned apart.
    """
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
    """Return the text as JSON writes it between quotes."""
    if text.isascii():
        plain = text.encode()
        if not plain.translate(None, _PLAIN):
            return plain
    return _COMPACT(text)[1:-1].encode()


def _length(value: Any, long: Long) -> int:
    """Return about how many characters the value has. More than SLICE if it holds one of the ``long`` strings."""
    if isinstance(value, str):
        return SLICE + 1 if value in long else len(value)
    if isinstance(value, dict):
        value = value.values()
    return sum(_length(item, long) for item in value) if isinstance(value, Iterable) else 1
