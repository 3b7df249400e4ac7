"""JSON exactly as the standard defines it, for the header of a payload and the texts in its metadata.

Python's parser also takes duplicate names, and the words NaN and Infinity: ``load`` refuses them. It refuses -0 too,
because safetensors reads -0 as a float and so not as a size.
"""

import json
import re
from typing import Any, Final, NoReturn

import orjson

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge

_MAX_DEPTH: Final = 512  # Python 3.11's parser gives up at 1,000 levels, 3.12's at 1,500 or more
_STRING_OR_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_STEPS: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


class _NotStrict(ValueError):
    """JSON that Python's parser takes and we refuse."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) != len(pairs):
        raise _NotStrict("a name stands twice in one object")
    return items


def _constant(name: str) -> NoReturn:
    raise _NotStrict(f"{name} is not JSON")


def _integer(digits: str) -> int:
    if digits == "-0":
        raise _NotStrict("-0 is not an integer")
    return int(digits)


_decode: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant, parse_int=_integer).decode


def dump(value: object, field: str) -> str:
    """Return ``value`` as JSON without spaces and without escapes of non-ASCII letters; NaN and infinities become null.

    Raises PayloadError, naming ``field``, for a value that orjson does not write: an object of an unknown type, an
    integer of more than 64 bits, a lone surrogate.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise PayloadError(str(error), field=field) from error


def load(text: str | bytes, field: str) -> Any:
    """Parse JSON whose size the caller has bounded, and return its value.

    Raises PayloadTooLarge, naming ``field``, for more than 512 lists and objects inside each other, and PayloadCorrupt,
    naming ``field``, for text that is not UTF-8 or not strict JSON.
    """
    try:
        encoded = text if isinstance(text, bytes) else text.encode()
        value = orjson.loads(encoded)
        if orjson.dumps(value) == encoded.rstrip(b" "):
            return value  # ``dump`` wrote it, or might have: no name stands twice, and all is as the standard says
    except (ValueError, TypeError):  # orjson takes fewer levels than we do, and tells less of what is wrong
        pass
    return _load_strictly(text, field)


def _load_strictly(text: str | bytes, field: str) -> Any:
    try:
        if isinstance(text, bytes):
            text = text.decode()
        if _depth(text) > _MAX_DEPTH:
            raise PayloadTooLarge("nested too deeply", field=field)
        return _decode(text)
    except UnicodeDecodeError:
        raise PayloadCorrupt("not UTF-8", field=field) from None
    except _NotStrict as error:
        raise PayloadCorrupt(str(error), field=field) from None
    except ValueError:  # malformed, or an integer of thousands of digits
        raise PayloadCorrupt("not JSON", field=field) from None


def _depth(text: str) -> int:
    """Return a bound on how many lists and objects stand inside each other; exact above ``_MAX_DEPTH``."""
    brackets = text.count("[") + text.count("{")
    if brackets <= _MAX_DEPTH:
        return brackets
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        depth += _STEPS.get(match[0], 0)
        deepest = max(deepest, depth)
    return deepest


def check_text(text: str, field: str) -> None:
    """Raise PayloadError, naming ``field``, for a lone surrogate: JSON can escape one, UTF-8 cannot hold it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PayloadError("text that is not valid Unicode (a lone surrogate)", field=field) from None
