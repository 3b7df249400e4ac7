"""``Decoder``: answers of servers that compress although nobody asked them to, decompressed in small steps."""

import zlib
from collections.abc import Iterator

from workers.runners.remote.failures import bad_answer

_STEP = 64 << 10  # bytes that one step makes: a bomb goes off in pieces, which are counted
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_MOST_MEMBERS = 64
_RAW = -zlib.MAX_WBITS


class Decoder:
    """Decompresses gzip, also of several members, and deflate with its header or without."""

    def __init__(self, *, is_deflate: bool) -> None:
        self._is_deflate = is_deflate
        self._stream: zlib._Decompress | None = None
        self._members = 0

    def decoded(self, data: bytes) -> Iterator[bytes]:
        """Yield what bytes become, in pieces of at most 64 KiB. Raises ModelError for what does not decompress."""
        piece = b""
        while data or len(piece) == _STEP:
            if self._stream is None:
                if not data or (self._members and not data[0]):  # padding
                    return
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise bad_answer(f"it is compressed in more than {_MOST_MEMBERS} members")
                has_header = not self._is_deflate or data[0] & 0x0F == zlib.DEFLATED
                self._stream = zlib.decompressobj(_GZIP_OR_ZLIB if has_header else _RAW)
            try:
                piece = self._stream.decompress(data, _STEP)
            except zlib.error as error:
                raise bad_answer(f"it does not decompress: {error}") from None
            data = self._stream.unconsumed_tail
            if self._stream.eof:
                data = self._stream.unused_data
                self._stream = None
            if piece:
                yield piece

    @property
    def is_whole(self) -> bool:
        """Whether the bytes so far are no part of something longer."""
        return self._stream is None


def decoder_of(encoding: str) -> Decoder | None:
    """Return what decodes an answer's Content-Encoding; None: nothing has to. Raises ModelError for an unknown one."""
    match encoding.strip().lower():
        case "" | "identity" | "utf-8" | "utf8" | "none":  # some servers mean the charset
            return None
        case "gzip" | "x-gzip":
            return Decoder(is_deflate=False)
        case "deflate":
            return Decoder(is_deflate=True)
        case unknown:
            raise bad_answer(f"it is compressed as {unknown[:40]!r}, which was not asked for")
