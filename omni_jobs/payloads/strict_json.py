"""JSON as the standard has it, both ways: what Python's parser takes beyond it is refused."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

import orjson

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge

__all__ = ["check_text", "dump", "load"]


class _Refused(ValueError):
    """JSON to Python's parser, not to the standard or to us."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Refused("a name stands twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is not JSON")


def _integer(digits: str) -> int:
    if digits == "-0":  # to other parsers a float: to safetensors' no size and no offset
        raise _Refused("-0 is not an integer")
    return int(digits)


# Made once: every json.loads with options makes its own.
_decode: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant, parse_int=_integer).decode


_DEEPEST: Final = 512  # where Python's parser gives up differs by version: 3.11 at 1,000 levels, 3.12 at 1,500 or more
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)  # and strings, which hold none
_SHORT: Final = 16_384  # text that may be taken apart and put together again for a moment


def dump(value: object, at: str) -> str:
    """JSON without spaces, not escaped. Raises PayloadError, of the field ``at``; writes NaN as null."""
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise PayloadError(str(error), field=at) from error


def load(text: str | bytes, at: str) -> Any:
    """JSON of bounded size. Raises PayloadCorrupt and PayloadTooLarge, of the field ``at``."""
    if len(text) <= _SHORT:
        try:
            found = orjson.loads(text)
            # What stands as we write it holds nothing that is to be refused, of which orjson takes some.
            if orjson.dumps(found) == (text if isinstance(text, bytes) else text.encode()).rstrip(b" "):
                return found
        except (ValueError, TypeError):
            pass  # the other parser says what is wrong with it, or takes it
    try:
        if isinstance(text, bytes):
            text = text.decode()
        decoded = _decode(text)
    except UnicodeDecodeError:
        raise PayloadCorrupt("not UTF-8", field=at) from None
    except _Refused as refused:
        raise PayloadCorrupt(str(refused), field=at) from None
    except ValueError as error:  # malformed, or an integer of thousands of digits
        if isinstance(error, json.JSONDecodeError) and _deepest_before(text, error.pos) > _DEEPEST:
            raise PayloadTooLarge("nested too deeply", field=at) from None
        raise PayloadCorrupt("not JSON", field=at) from None
    except RecursionError:
        raise PayloadTooLarge("nested too deeply", field=at) from None
    if text.count("[") + text.count("{") > _DEEPEST and _is_deep(decoded):
        raise PayloadTooLarge("nested too deeply", field=at)
    return decoded


def _deepest_before(text: str | bytes, end: int) -> int:
    """How deep lists and objects stand inside each other in what the parser read before its error."""
    read = text[:end]
    if isinstance(read, bytes) or read.count("[") + read.count("{") <= _DEEPEST:
        return 0
    depth = deepest = 0
    for match in _BRACKET.finditer(read):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        deepest = max(deepest, depth)
    return deepest


def _is_deep(value: Any) -> bool:
    """Whether lists and objects stand inside each other more than ``_DEEPEST`` times."""
    level: list[Any] = [[value]]
    for _ in range(_DEEPEST + 1):
        inside = [item for part in level for item in (part.values() if isinstance(part, dict) else part)]
        level = [item for item in inside if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def check_text(text: str, at: str) -> None:
    """Raise PayloadError for a lone surrogate, which JSON can escape and UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PayloadError("text that is not valid Unicode (a lone surrogate)", field=at) from None
