"""JSON as the standard has it, both ways: what Python's parser takes beyond it is refused."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from omni_jobs.errors import PayloadCorrupt, PayloadError, PayloadTooLarge

__all__ = ["check_text", "dump", "load"]


def dump(value: object, at: str) -> str:
    """JSON without spaces, not escaped. Raises PayloadError, of the field ``at``."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise PayloadError(str(error), field=at) from error


def load(text: str | bytes, at: str) -> Any:
    """JSON of bounded size. Raises PayloadCorrupt and PayloadTooLarge, of the field ``at``."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise PayloadCorrupt("a name stands twice in one object", field=at)
        return found

    def constant(name: str) -> NoReturn:
        raise PayloadCorrupt(f"{name} is not JSON", field=at)

    def integer(digits: str) -> int:
        if digits == "-0":  # to other parsers a float: to safetensors' no size and no offset
            raise PayloadCorrupt("-0 is not an integer", field=at)
        return int(digits)

    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(text, object_pairs_hook=unique, parse_constant=constant, parse_int=integer)
    except UnicodeDecodeError:
        raise PayloadCorrupt("not UTF-8", field=at) from None
    except ValueError:  # malformed, or an integer of thousands of digits
        raise PayloadCorrupt("not JSON", field=at) from None
    except RecursionError:
        raise PayloadTooLarge("nested too deeply", field=at) from None


def check_text(text: str, at: str) -> None:
    """Raise PayloadError for a lone surrogate, which JSON can escape and UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PayloadError("text that is not valid Unicode (a lone surrogate)", field=at) from None
