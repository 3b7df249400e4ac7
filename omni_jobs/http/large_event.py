"""``LargeEvent``: an event whose data come in pieces, because they are too large to be in memory or encoded whole."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from sse_starlette import ServerSentEvent

_LARGE_CHARS: Final = 64 << 10
_PIECE_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class LargeEvent:
    """An event of a stream of events.

    name  what it is
    data  UTF-8 in pieces, without line ends. An error of theirs breaks the stream off within the event
    """

    name: str
    data: AsyncGenerator[bytes, None]

    async def encoded(self) -> AsyncGenerator[bytes, None]:
        """Yield the event as it is sent, in pieces."""
        yield f"event: {self.name}\ndata: ".encode()
        async with aclosing(self.data):
            async for piece in self.data:
                yield piece
        yield b"\n\n"


def line_event(name: str, line: str) -> ServerSentEvent | LargeEvent:
    """Return the event with these data, a single line. The library would search a large one for the ends of others."""
    if len(line) <= _LARGE_CHARS:
        return ServerSentEvent(line, event=name)
    return LargeEvent(name, _pieces(line.encode()))


async def _pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    for at in range(0, len(data), _PIECE_BYTES):
        yield data[at : at + _PIECE_BYTES]
