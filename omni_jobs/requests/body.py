"""A request's bytes → JSON whose strings every part of the platform can carry."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from omni_jobs.errors import InvalidRequest, RequestTooLarge

__all__ = ["parse_body"]

_MAX_DEPTH = 32
_MAX_VALUES = 1_000_000  # a few bytes of JSON can become a hundred of memory

Path = tuple["Path", str | int] | None


def parse_body(body: bytes, max_bytes: int) -> dict[str, Any]:
    """The JSON object. Raises InvalidRequest or RequestTooLarge.

    Refused beyond what JSON itself forbids: a key given twice, NaN and infinities, more than
    32 levels, and strings with lone surrogates (no UTF-8) or NUL (PostgreSQL keeps none).
    """
    if len(body) > max_bytes:
        raise RequestTooLarge(f"the body has {len(body)} bytes; at most {max_bytes} are taken", field="body")
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > _MAX_VALUES:
        raise RequestTooLarge(f"the body has more than {_MAX_VALUES} values", field="body")
    try:
        tree = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: {error.reason} at byte {error.start}", field="body") from None
    except RecursionError:
        raise InvalidRequest(f"the body is nested deeper than {_MAX_DEPTH} levels", field="body") from None
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", field="body") from None
    if not isinstance(tree, dict):
        raise InvalidRequest("the body must be a JSON object", field="body")
    _check_strings(tree)
    return tree


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest("this key is given twice", field=_shown(twice))
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check_strings(tree: dict[str, Any]) -> None:
    waiting: list[tuple[Any, Path, int]] = [(tree, None, 1)]
    while waiting:
        value, path, depth = waiting.pop()
        if isinstance(value, str):
            _check_string(value, path)
        elif isinstance(value, dict | list):
            if depth > _MAX_DEPTH:
                raise InvalidRequest(f"nested deeper than {_MAX_DEPTH} levels", field=_dotted(path))
            if isinstance(value, dict):
                for name in value:
                    _check_string(name, (path, name))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting.extend((item, (path, name), depth + 1) for name, item in items)


def _check_string(value: str, path: Path) -> None:
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


def _dotted(path: Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, name = path
        parts.append(_shown(str(name)))
    return ".".join(reversed(parts))


def _shown(name: str) -> str:
    """A client's key, fit for an error."""
    return name[:64].encode("ascii" if "\0" in name else "utf-8", "backslashreplace").decode().replace("\0", "\\x00")
