"""JSON that has media in base64, made in pieces, of which one at a time is in memory."""

from base64 import b64encode
from collections.abc import Generator, Iterable


def length_of(text: str, sizes: Iterable[int]) -> int:
    """Return how many bytes ``pieces_of`` yields for ``text`` and media of these sizes in bytes."""
    return len(text.encode()) + sum(-(-size // 3) * 4 for size in sizes)


def pieces_of(text: str, gap: str, media: Iterable[Iterable[bytes]]) -> Generator[bytes]:
    """Yield the JSON ``text`` in pieces, with the base64 of the media in its gaps, one in each.

    ``gap``: what stands where the base64 goes, and nowhere else, with the empty string ``""`` in it. ``media``: the
    bytes of each, in pieces.
    """
    begin, end = gap.split('""')
    first, *rest = text.split(gap)
    yield first.encode()
    for pieces, after in zip(media, rest, strict=True):
        yield f'{begin}"'.encode()
        yield from as_base64(pieces)
        yield f'"{end}{after}'.encode()


def as_base64(pieces: Iterable[bytes]) -> Generator[bytes]:
    """Yield the base64 of what comes in pieces, in pieces. Each is base64 by itself."""
    left = b""
    for piece in pieces:
        data = left + piece
        whole = len(data) - len(data) % 3
        left = data[whole:]
        yield b64encode(data[:whole])
    yield b64encode(left)
