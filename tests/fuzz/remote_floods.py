"""The costliest answers of a remote server that are known, 64 MiB each, and what they cost the worker:

    python -m tests.fuzz.remote_floods [--mib 64] [--json FILE]

A task wants to run every 5 ms beside each (``LoopWatch``). Memory is the most that the process has, over what it had
before. The exit code is 1 when the loop stood for longer than 50 ms, or an answer took over three times its bytes and
32 MiB, of which the interpreter and its threads have their own use.
"""

import argparse
import asyncio
import base64
import re
import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.figures import Figure, figure, report
from omni_jobs.errors import OmniJobsError
from tests.fuzz.remote import LoopWatch, server_process
from tests.remote_stages import prompt, recording, remote_runner
from tests.services.openai_server import Connection, Request
from workers.consumer.stage_host import keep_what_is_loaded

__all__ = ["FLOODS", "Cost", "cost"]

_MIB: Final = 1 << 20
_STANDS_S: Final = 0.05
_STREAM: Final = 4 * _MIB
_OWN_MIB: Final = 32
_EVENTS: Final = "text/event-stream"
_ASKED: Final = re.compile(rb"flood-(\d+)-(\d+)-")
_PNG: Final = b"\x89PNG\r\n\x1a\n\0"
_UNKNOWN: Final = b"\xff\xff\xff\xff"  # a size that a writer of a WAV does not know
_WAV: Final = b"".join(
    (b"RIFF", _UNKNOWN, b"WAVEfmt ", struct.pack("<IHHIIHH", 16, 1, 1, 24_000, 48_000, 2, 16), b"data", _UNKNOWN)
)
_SEGMENT: Final = b'{"start":0,"end":1,"text":"' + b"a " * 100_000 + b'"},'
_SAID: Final = b'"choices":[{"delta":{"content":"a"}}]'


@dataclass(frozen=True)
class Flood:
    """A long answer: ``begin``, then ``piece`` again and again, then ``end``. ``chunk``: bytes of one chunk."""

    name: str
    endpoint: str
    begin: bytes
    piece: bytes
    end: bytes = b""
    content_type: str = "application/json"
    chunk: int = 65_536
    encoding: str = "identity"

    @property
    def is_stream(self) -> bool:
        """Whether it is many small pieces, which cost time and no more memory than one: 4 MiB of them will do."""
        return self.chunk == 1 or (self.content_type == _EVENTS and len(self.piece) < 100_000 and b"{" in self.piece)

    def chunks(self, size: int) -> Iterator[bytes]:
        """Yield the answer's chunks, encoded."""
        packer = zlib.compressobj(9, wbits=31) if self.encoding == "gzip" else None
        at_once = self.piece * max(1, self.chunk // len(self.piece))
        yield from self._encoded(packer, self.begin)
        for _ in range(len(self.begin) + len(self.end), size - len(at_once), len(at_once)):
            yield from self._encoded(packer, at_once)
        yield from self._encoded(packer, self.end)
        if packer is not None:
            yield packer.flush()

    def _encoded(self, packer: "zlib._Compress | None", data: bytes) -> Iterator[bytes]:
        data = data if packer is None else packer.compress(data)
        if data:
            yield data


def _wav_of(size: int) -> bytes:
    return (
        b"RIFF\xff\xff\xff\xffWAVEfmt "
        + struct.pack("<IHHIIHH", 16, 1, 1, 24_000, 48_000, 2, 16)
        + b"data\xff\xff\xff\xff"
    )


FLOODS: Final = [
    *(
        Flood(f"{name} as choices", "chat", b'{"choices":[', piece, b"0]}")
        for name, piece in {
            "ones": b"1,",
            "lists": b"[],",
            "objects": b"{},",
            "nested objects": b'{"a":{"a":{}}},',
            "empty strings": b'"",',
            "escapes": rb'"\u4f60\"",',
        }.items()
    ),
    Flood("ones as an event", "chat", b'data: {"choices":[', b"1,", b"0]}\n\n", _EVENTS),
    Flood("lists beside a picture", "images", b'{"data":[{"b64_json":"AAAA"}],"x":[', b"[],", b"0]}"),
    Flood("objects as output", "responses", b'{"status":"completed","output":[', b'{"type":"message"},', b"0]}"),
    Flood("white space", "chat", b"{", b" ", b"}"),
    Flood("white space in front", "chat", b"", b" \n", b"{}"),
    Flood("a number", "chat", b'{"choices":', b"9", b"}"),
    Flood("nesting", "chat", b"", b"["),
    Flood("plain text", "chat", b'{"choices":[{"message":{"content":"', b"a", b'"}}]}'),
    Flood("escaped text", "chat", b'{"choices":[{"message":{"content":"', rb"\u4f60", b'"}}]}'),
    Flood("text of wide characters", "chat", b'{"choices":[{"message":{"content":"', "你".encode(), b'"}}]}'),
    Flood("quotes", "chat", b'{"choices":[{"message":{"content":"', rb"\"", b'"}}]}'),
    Flood("words", "chat", b"", b"data: {" + _SAID + b"}\n\n", b"data: [DONE]\n\n", _EVENTS),
    Flood("empty events", "chat", b"", b"data:{}\n\n", content_type=_EVENTS),
    Flood("events of many values", "chat", b"", b'data:{"x":[' + b"[]," * 9000 + b"0]}\n\n", content_type=_EVENTS),
    Flood("large events", "chat", b"", b'data:{"x":["' + b'a"," ' * 49_000 + b'"]}\n\n', content_type=_EVENTS),
    Flood("lines of data", "chat", b"", b"data:\n", content_type=_EVENTS),
    Flood("empty lines", "chat", b": \n", b"\n", content_type=_EVENTS),
    Flood("carriage returns", "chat", b": \n", b"\r", content_type=_EVENTS),
    Flood("comments", "chat", b"", b":\n", content_type=_EVENTS),
    Flood("tiny chunks", "chat", b"", b":", content_type=_EVENTS, chunk=1),
    Flood("tiny chunks of a sound", "speech", b"RIFF\0\0\0\0WAVE", b"x", content_type="audio/wav", chunk=1),
    Flood("a bomb", "chat", b"{", b" ", content_type="application/json", encoding="gzip"),
    Flood("a bomb of events", "chat", b"", b"data:{}\n\n", content_type=_EVENTS, encoding="gzip"),
    Flood("a picture", "images", b'{"data":[{"b64_json":"', base64.b64encode(_PNG * 3), b'"}]}'),
    Flood("a picture with escapes", "images", b'{"data":[{"b64_json":"', rb"iVBORw0KGgoA\/\/\/\/", b'"}]}'),
    Flood("a sound", "speech", _WAV, bytes(range(128)), content_type="audio/wav"),
    Flood("a sound in events", "speech", b"", b'data:{"audio":"' + b"UklG" * 9000 + b'"}\n\n', content_type=_EVENTS),
    Flood("a transcript", "transcriptions", b'{"text":"', b"a ", b'"}'),
    Flood("segments", "transcriptions", b'{"text":"a","segments":[', b'{"start":0,"end":1,"text":"a"},', b"0]}"),
    Flood("a few long segments", "transcriptions", b'{"text":"a","segments":[', _SEGMENT, b"0]}"),
    Flood("speech in JSON", "speech", b'{"audio":"' + base64.b64encode(_WAV + b"\0"), b"AAAA", b'"}'),
    Flood("a plain transcript", "transcriptions", b"", b"a ", content_type="text/plain"),
    Flood("heads that do not count", "chat", b"", b"HTTP/1.1 102 Processing\r\n\r\n", content_type=""),
]


class Cost(NamedTuple):
    """What a flood cost: seconds that the loop stood, bytes of memory, and what became of it."""

    stood_s: float
    memory: int
    outcome: str


async def cost(flood: Flood, size: int, url: str) -> Cost:
    """Take a flood of so many bytes, from a server that ``serve`` answers for."""
    size = min(size, _STREAM) if flood.is_stream else size
    name = f"flood-{FLOODS.index(flood)}-{size}-"
    recordings = [recording(data=name.encode())] if flood.endpoint == "transcriptions" else []
    asked = prompt(flood.endpoint, name, recordings=recordings, audio_format="wav", capture=flood.endpoint == "speech")
    settings = {"max_answer_bytes": _MIB if flood.chunk == 1 else size + size // 8, "silence_s": 3, "total_s": 300}
    watch = LoopWatch()
    async with remote_runner(url, flood.endpoint, **settings) as runner:
        before = _memory()
        with _Peak() as peak:
            async with watch.watching():
                try:
                    await runner.run(asked, lambda progress: None)
                    outcome = "answered"
                except OmniJobsError as error:
                    outcome = f"{error.code}: {error.message[:90]}"
    return Cost(watch.stood_s, peak.most - before, outcome)


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class _Peak:
    """The most memory that this process has, looked at every few milliseconds."""

    def __enter__(self) -> "_Peak":
        self.most = _memory()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, _memory())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


async def serve(request: Request, connection: Connection) -> None:
    """Answer with the flood that a request names."""
    found = _ASKED.search(request.body)
    assert found is not None
    flood, size = FLOODS[int(found[1])], int(found[2])
    if not flood.content_type:
        while True:
            await connection.send(flood.piece * 2000)
    await connection.head(
        200,
        {"Content-Type": flood.content_type, "Transfer-Encoding": "chunked", "Content-Encoding": flood.encoding},
    )
    for chunk in flood.chunks(size):
        if flood.chunk == 1 and len(chunk) == 1:
            await connection.send(b"1\r\n%b\r\n" % chunk * 5000)
        else:
            await connection.chunk(chunk)
    await connection.send(b"0\r\n\r\n")


async def _measured(size: int, only: str) -> list[Figure]:
    figures = []
    async with server_process(serve) as url:
        for flood in (each for each in FLOODS if only in each.name):
            stood_s, memory, outcome = await cost(flood, size, url)
            print(f"{flood.name}: {1000 * stood_s:.0f} ms, {memory / _MIB:.0f} MiB, {outcome}", flush=True)
            figures.append(figure(f"{flood.name}: loop", "ms", [1000 * stood_s], at_most=1000 * _STANDS_S))
            most = 3 * size // _MIB + _OWN_MIB
            figures.append(figure(f"{flood.name}: memory", "MiB", [memory / _MIB], at_most=most))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.remote_floods", description="Floods of a server.")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--only", default="", help="those whose names contain this")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    keep_what_is_loaded()  # as a worker does once its stage is loaded
    figures = asyncio.run(_measured(arguments.mib * _MIB, arguments.only))
    report(figures, arguments.json)
    sys.exit(0 if all(each.met is not False for each in figures) else 1)


if __name__ == "__main__":
    main()
