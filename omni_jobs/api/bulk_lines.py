"""The lines of a bulk: read as they come in, and handed on in groups, so that the body is never in memory whole."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from omni_jobs.errors import OmniJobsError, RequestTooLarge
from omni_jobs.http.held_bodies import Body
from omni_jobs.settings import BULK_GROUP_BYTES

_GROUP_LINES = 256
_PIECE_BYTES = 2 << 10

BulkLine = tuple[int, bytes | OmniJobsError]
"""The number of a line, from 1, and its text; or the error that says why it was not read."""


async def groups_of_lines(
    chunks: AsyncIterator[bytes], max_line_bytes: int, body: Body
) -> AsyncGenerator[list[BulkLine]]:
    """Yield the lines that are not blank, in groups of at most 256 lines and some 4 MiB.

    A line longer than ``max_line_bytes`` is RequestTooLarge in its place. A group counts as held in ``body``: the
    caller passes its ``size_of`` to ``body.let_go`` once it is done with it. A group ends early where the server has no
    room for more bytes of bodies. The iteration raises ServerBusy if there is no room for a single line.
    """
    group: list[BulkLine] = []
    size = 0
    async with aclosing(_lines(chunks, max_line_bytes, body)) as lines:
        async for line in lines:
            more = 0 if line is None else size_of([line])
            if group and (line is None or not body.has_room(more)):
                yield group
                group, size = [], 0
            if line is None:
                continue
            body.hold(more)
            group.append(line)
            size += more
            if len(group) >= _GROUP_LINES or size >= BULK_GROUP_BYTES:
                yield group
                group, size = [], 0
    if group:
        yield group


def size_of(group: Sequence[BulkLine]) -> int:
    """Return how many bytes a group's lines hold together; a line that is an error holds none."""
    return sum(len(line) for _, line in group if isinstance(line, bytes))


async def _pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in small pieces, because a large one of nothing but line ends would hold up others."""
    async for chunk in chunks:
        for at in range(0, len(chunk), _PIECE_BYTES):
            yield chunk[at : at + _PIECE_BYTES]
            await asyncio.sleep(0)


async def _lines(chunks: AsyncIterator[bytes], max_bytes: int, body: Body) -> AsyncGenerator[BulkLine | None]:
    """Yield the lines that are not empty. A line that is too long is an error in its place, and its text is dropped.

    Yields None if there is no room for more of a line: then the receiver lets go of the lines before it. Raises
    ServerBusy if there is no room after that.
    """
    number, kept, dropping = 1, bytearray(), False
    held = 0
    async for chunk in _pieces(chunks):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not (end or kept or dropping):  # an empty line costs almost no time
                number += 1
                continue
            kept += end
            line = _too_long(max_bytes) if dropping or len(kept) > max_bytes else bytes(kept).strip()
            kept.clear()
            body.let_go(held)  # the receiver counts the line from here on
            held = 0
            if line:
                yield number, line
            number, dropping = number + 1, False
        kept += rest
        if len(kept) > max_bytes:
            kept.clear()
            dropping = True
        body.let_go(held)
        held = 0
        if not body.has_room(len(kept)):
            yield None
        body.hold(len(kept))
        held = len(kept)
    if dropping:
        yield number, _too_long(max_bytes)
    elif line := bytes(kept).strip():
        kept.clear()
        body.let_go(held)
        yield number, line


def _too_long(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the line has more than {max_bytes} bytes (max_body_bytes)", field="body")
