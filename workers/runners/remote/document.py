"""``Document``: one JSON document of a server's answer, read by path, whatever else it holds.

What is null or missing is None. Only what is asked for has to be of the right type, so no other part of a document can
spoil it. Parsing is bounded: a large document is outlined first, on a thread (``omni_jobs.requests.json_body``).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from omni_jobs.errors import InvalidRequest, RequestTooLarge
from omni_jobs.requests.json_body import outline
from omni_jobs.requests.upload import Upload
from workers.runners.remote.failures import bad_answer

MOST_TEXT = 4 << 20
"""Characters of one text, and of all pieces of a text together."""
_SMALL = 32 << 10  # bytes that cannot hold too much of anything, and are parsed in a tenth of a millisecond

PathStep = str | int


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON value, and the long strings that were cut out of it, by the names that stand in their places."""

    value: Any
    long: Mapping[str, memoryview] = field(default_factory=dict)

    def at(self, *path: PathStep) -> Any:
        """Return the value at a path of keys and positions; None for null, and where nothing is.

        Raises ModelError naming a part on the way that is neither null nor an object or list as the path says.
        """
        value = self.value
        for depth, step in enumerate(path):
            if isinstance(step, str):
                if isinstance(value, dict):
                    value = value.get(step)
                    continue
                wanted = "object"
            else:
                if isinstance(value, list):
                    value = value[step] if step < len(value) else None
                    continue
                wanted = "list"
            if value is None:
                return None
            raise bad_answer(f"{_dotted(path[:depth])}: no {wanted}")
        return value

    def text(self, *path: PathStep) -> str | None:
        """Return the string at a path. Raises ModelError for another type, and for more than 4 Mi characters."""
        value = self._string(*path)
        if value is not None and value in self.long:
            whole = self.long[value]
            if len(whole) > MOST_TEXT:
                raise bad_answer(f"{_dotted(path)}: more text than {MOST_TEXT} characters")
            return str(whole, "ascii")
        return value

    def _string(self, *path: PathStep) -> str | None:
        value = self.at(*path)
        if value is None or isinstance(value, str):
            return value
        raise bad_answer(f"{_dotted(path)}: no string")

    def peek(self, *path: PathStep) -> Any:
        """Return the value at a path as ``at`` does, and None where a part on the way is of another type."""
        value = self.value
        for step in path:
            if isinstance(step, str) and isinstance(value, dict):
                value = value.get(step)
            elif isinstance(step, int) and isinstance(value, list) and step < len(value):
                value = value[step]
            else:
                return None
        return value

    def word(self, *path: PathStep) -> str | None:
        """Return the string at a path if there is one that is neither empty nor long; None for anything else."""
        value = self.peek(*path)
        return value if isinstance(value, str) and value and value not in self.long else None

    async def medium(self, *path: PathStep) -> memoryview | None:
        """Return the bytes of the base64 at a path, which may stand in a data: URL.

        Raises ModelError for a value of another type, for what is no base64, and for no bytes.
        """
        value = self._string(*path)
        if value is None:
            return None
        encoded = self.long.get(value, value)
        read = partial(Upload(encoded=encoded).read, _dotted(path), is_url=self.is_data_url(*path))
        try:
            return read() if len(encoded) <= _SMALL else await asyncio.to_thread(read)
        except InvalidRequest as error:
            raise bad_answer(f"{_dotted(path)}: {error.message}") from None

    def is_data_url(self, *path: PathStep) -> bool:
        """Return whether a data: URL is at a path."""
        value = self.peek(*path)
        if not isinstance(value, str):
            return False
        begin = str(self.long[value][:5], "ascii") if value in self.long else value[:5]
        return begin.lower() == "data:"


async def read_document(data: bytes | bytearray) -> Document:
    """Return the document that JSON is; ``data`` must not change while it is used. More than 32 KiB need a thread.

    JSON means what its standard says: UTF-8, neither NaN nor lone surrogates. Raises ModelError for bytes that are no
    JSON, for more than 50,000 values, and for more than 8 MiB beside long plain strings.
    """
    return _parsed(data) if len(data) <= _SMALL else await asyncio.to_thread(_parsed, data)


def _parsed(data: bytes | bytearray) -> Document:
    long: dict[str, memoryview] = {}
    try:
        if len(data) > _SMALL:
            data, long = outline(data, 0, 0)
        return Document(orjson.loads(data), long)
    except RequestTooLarge as error:
        raise bad_answer(error.message) from None
    except orjson.JSONDecodeError as error:
        raise bad_answer(f"not JSON: {error.msg if long else error}") from None


def _dotted(path: tuple[PathStep, ...]) -> str:
    return ".".join(str(step) for step in path) or "all of it"
