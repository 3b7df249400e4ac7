"""``LargeEvent``: an event whose data come in pieces, because they are too large to be in memory whole."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass


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
