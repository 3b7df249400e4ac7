"""``MediaWall``: all audio, images and video are decoded behind it, in processes of their own.

    server  ──socket: JSON──▶  decoder_host  ──pebble──▶  decoders, forked from a clean server
       └────────── bytes of media and results: files in memory (memfd) ──────────────┘

A decoder reads bytes that anyone may have made, with libraries in C. It inherits nothing of this process but
a scrubbed environment, has limits on memory, processor time, files and descriptors, and is killed when its
time is over. What it makes of a medium, or that it died of it, is the request's business: InvalidRequest or
RequestTooLarge. What no request can be blamed for is DecodersUnavailable, and may be tried again.

What the wall does not do: a decoder that an attacker has taken over runs under the same user as the server.
It can make the host unpickle what it wants, and read what that user may read, /proc of the server and other
requests' media among it. What comes back here is JSON and files whose size is sealed: nothing is unpickled
in this process.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from omni_jobs.errors import DecodersUnavailable, InvalidRequest, OmniJobsError, RequestTooLarge
from omni_jobs.media.info import SAMPLING_RATE, AudioInfo, ImageInfo, MediaInfo, VideoInfo
from omni_jobs.media.limits import MediaLimits

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from omni_jobs.settings import Settings

__all__ = ["MediaBudget", "MediaWall", "ending_of"]

logger = logging.getLogger(__name__)

Kind = Literal["audio", "image", "video"]

LONGEST_MESSAGE = 1 << 18
KEPT_BYTES = 16 << 20  # media and results up to here share memory that is kept: 5 megapixels
_START_S = 60.0  # a host that answers nothing so long after a task's time is over is replaced
_CLOSE_S = 10.0
_PATIENCE = 3  # times as long by the clock as of the processor: on a busy host a medium waits for that
_INFOS: Mapping[str, type[MediaInfo]] = {"audio": AudioInfo, "image": ImageInfo, "video": VideoInfo}
_REFUSALS: Mapping[str, type[OmniJobsError]] = {kind.code: kind for kind in (InvalidRequest, RequestTooLarge)}

# What a decoder's environment holds: where Python and its libraries are, and one thread for each of them.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
_LONGEST_TMPDIR = 60
_SET = {
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # what a decoder has had it keeps, up to here: new pages cost time
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONNOUSERSITE": "1",
}


def ending_of(status: int) -> dict[str, Any]:
    """What to answer when a decoder ended of itself with this exit status.

    A medium is blamed for the signals of a library that broke or of a limit of this wall. SIGTERM and SIGKILL come
    from an operator, from the host's memory being short, or from a parent that died. A positive status is that of
    multiprocessing, which lost its server of forks, or of pebble, which lost its channel.
    """
    if status >= 0:
        return {"unavailable": f"the decoder ended with status {status}"}
    if status in (-signal.SIGTERM, -signal.SIGKILL):
        return {"unavailable": f"the decoder was stopped ({signal.Signals(-status).name})"}
    if status == -signal.SIGXCPU:
        return {"ended": "time"}
    return {"ended": signal.Signals(-status).name}


class MediaBudget:
    """The decoders' time that one submit's media may take together."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.left_s = seconds

    def take(self, seconds: float) -> None:
        self.left_s -= seconds

    def check(self) -> None:
        """Raises RequestTooLarge once it is used up."""
        if self.left_s <= 0:
            raise RequestTooLarge(f"the media take more than {self._seconds:g} s to decode")


@contextmanager
def _understood() -> Iterator[None]:
    """Raises DecodersUnavailable for an answer that has another shape than a decoder's."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise DecodersUnavailable(f"a decoder's answer is none: {error!r}") from None


class MediaWall:
    """A process's decoders, started with the first medium. Safe for threads. ``close`` it."""

    def __init__(self, settings: Settings) -> None:
        self._limits = asdict(MediaLimits.of(settings))
        self._processes = settings.decoders or min(max(2, os.cpu_count() or 2), 8)
        self._memory_bytes = settings.decoder_memory_bytes
        self._decode_limit_s = settings.decode_limit_s
        self._probe_limit_s = settings.probe_limit_s
        self._wait_s = settings.decoders_wait_s
        self._turns = _Turns(self._processes, settings.decoders_waiting)
        self._lock = threading.Lock()
        self._host: _Host | None = None
        self._closed = False

    @property
    def places(self) -> int:
        """How many media can be decoded or wait for it at once."""
        return self._processes + self._turns.max_waiting

    @property
    def pid(self) -> int | None:
        """The process that the decoders belong to; None before the first medium."""
        return self._host.pid if self._host is not None else None

    # Of a submit: measured, nothing kept.

    def budget(self) -> MediaBudget:
        return MediaBudget(self._probe_limit_s)

    def header(self, kind: Kind, data: bytes | memoryview, budget: MediaBudget) -> MediaInfo:
        """What the medium's header says, before anything is decoded; a lower bound where it does not know.

        Raises InvalidRequest, RequestTooLarge or DecodersUnavailable, as ``probe`` does.
        """
        return self._measured(kind, data, "header", {}, budget)

    def probe(
        self, kind: Kind, data: bytes | memoryview, budget: MediaBudget, *, enough_s: float | None = None
    ) -> MediaInfo:
        """Decode it as far as it must be to know it. ``enough_s``: of sound, the most that its receiver takes."""
        return self._measured(kind, data, "probe", {"enough_s": enough_s} if kind == "audio" else {}, budget)

    def _measured(
        self, kind: Kind, data: bytes | memoryview, what: str, options: dict[str, Any], budget: MediaBudget
    ) -> MediaInfo:
        budget.check()
        with self._turns.one(self._wait_s) as exchange:
            answer, _ = self._run(exchange, kind, data, what, options, None, budget.left_s)
        with _understood():
            budget.take(answer["cpu_s"])
            return _INFOS[kind](**answer["ok"])

    # Of a stage run: the samples and pixels. It waits for a decoder as long as it takes: its worker has room for it.

    def decode_audio(self, data: bytes | memoryview, sampling_rate: int = SAMPLING_RATE) -> np.ndarray[Any, Any]:
        """What ``omni_jobs.media.audio.decode_audio`` gives."""
        import numpy as np

        room = 4 * math.ceil((self._limits["max_audio_s"] + 1) * sampling_rate)
        with self._decoded("audio", data, {"sampling_rate": sampling_rate}, room) as (found, result):
            return np.frombuffer(result(4 * found["samples"]), np.float32)

    def decode_image(self, data: bytes | memoryview) -> Image.Image:
        """What ``omni_jobs.media.image.decode_image`` gives."""
        from PIL import Image

        with self._decoded("image", data, {}, 3 * self._limits["max_image_pixels"]) as (found, result):
            size = found["width"], found["height"]
            return Image.frombytes("RGB", size, memoryview(result(3 * size[0] * size[1])))

    def decode_video(self, data: bytes | memoryview) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """What ``omni_jobs.media.video.decode_video`` gives."""
        import numpy as np

        from omni_jobs.media.video import QWEN

        room = 3 * QWEN.max_frames * QWEN.max_pixels
        with self._decoded("video", data, {}, room) as (found, result):
            frames = np.frombuffer(result(math.prod(found["shape"])), np.uint8)
            return frames.reshape(found["shape"]), found["metadata"]

    @contextmanager
    def _decoded(
        self, kind: Kind, data: bytes | memoryview, options: dict[str, Any], room: int
    ) -> Iterator[tuple[dict[str, Any], Callable[[int], bytearray | mmap.mmap]]]:
        """What is said of the result, and what gives its bytes, to be changed as one likes."""
        with self._turns.one(None) as exchange:
            answer, large = self._run(exchange, kind, data, "decode", options, room, self._decode_limit_s)

            def result(nbytes: int) -> bytearray | mmap.mmap:
                if not 0 < nbytes <= room:
                    raise InvalidRequest(f"its decoder gave {nbytes} bytes; there is room for 1 to {room}")
                if nbytes > KEPT_BYTES:
                    return large.mapped(nbytes)
                return exchange.result(nbytes)

            yield answer["ok"], result

    # One task.

    def _run(
        self,
        exchange: _Exchange,
        kind: Kind,
        data: bytes | memoryview,
        what: str,
        options: dict[str, Any],
        room: int | None,
        limit_s: float,
    ) -> tuple[dict[str, Any], _MemoryFile]:
        """The answer, which has ``ok``, and where a large result is.

        Raises InvalidRequest, RequestTooLarge, DecodersUnavailable.
        """
        kept_medium, kept_result = exchange.files()
        medium = kept_medium if len(data) <= KEPT_BYTES else _MemoryFile("omni-jobs-medium", len(data))
        large = kept_result if room is None or room <= KEPT_BYTES else _MemoryFile("omni-jobs-decoded", room)
        medium.write(data)
        task = {
            "what": f"{kind}.{what}",
            "input": len(data),
            "room": room or 0,
            "options": options,
            "limits": self._limits,
            "limit_s": _PATIENCE * limit_s,
            "cpu_s": limit_s,
        }
        descriptors = [file.descriptor for file in (medium, kept_result, large)]
        answer = self._open_host().ask(task, descriptors)
        # Of those who were in flight when the pool broke, only one broke it. Once is enough: what ends its decoders
        # each time is told of, and how often a stage run is tried again is its job's matter.
        if "unavailable" in answer:
            answer = self._open_host().ask(task, descriptors)
        if "ok" in answer:
            return answer, large
        if "refused" in answer:
            with _understood():
                refused = answer["refused"]
                kind_of_error, message = _REFUSALS[refused["code"]], str(refused["message"])
            raise kind_of_error(message)
        if "ended" in answer:
            if answer["ended"] == "time":
                raise RequestTooLarge(f"the {kind} is not decoded after {limit_s:.3g} s")
            raise InvalidRequest(f"the {kind} does not decode: its decoder ended ({answer['ended']})")
        raise DecodersUnavailable(str(answer["unavailable"]))

    def _open_host(self) -> _Host:
        with self._lock:
            if self._closed:
                raise DecodersUnavailable("the decoders are closed")
            if self._host is None or not self._host.answers:
                if self._host is not None:
                    self._host.close()
                    logger.warning("the decoders are started anew: their host had ended")
                self._host = _Host(self._processes, self._memory_bytes)
            return self._host

    def close(self) -> None:
        """End the decoders; what waits for one gets DecodersUnavailable."""
        with self._lock:
            self._closed = True
            host, self._host = self._host, None
        if host is not None:
            host.close()

    def __enter__(self) -> MediaWall:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Turns:
    """As many at once as there are decoders, and so many waiting; each turn has a place to exchange bytes at."""

    def __init__(self, decoders: int, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._free = [_Exchange() for _ in range(decoders)]
        self._waiting = 0
        self._freed = threading.Condition()

    @contextmanager
    def one(self, wait_s: float | None) -> Iterator[_Exchange]:
        """Raises DecodersUnavailable when too many wait, or this one has for ``wait_s``; None: neither bounds it."""
        with self._freed:
            if not self._free and wait_s is not None and self._waiting >= self.max_waiting:
                raise DecodersUnavailable("too many media wait to be decoded")
            self._waiting += 1
            try:
                if not self._freed.wait_for(lambda: self._free, wait_s):
                    raise DecodersUnavailable(f"no decoder was free within {wait_s:g} s")
            finally:
                self._waiting -= 1
            exchange = self._free.pop()
        try:
            yield exchange
        finally:
            with self._freed:
                self._free.append(exchange)
                self._freed.notify()


class _Exchange:
    """Memory that this process and a decoder share.

    Pages that were used before cost a fraction of new ones, so what is not large goes through files that are
    kept. What is large has a file of its own.
    """

    def __init__(self) -> None:
        self._kept: list[_MemoryFile] = []

    def files(self) -> tuple[_MemoryFile, _MemoryFile]:
        """The kept ones, for a medium and for a result. Raises DecodersUnavailable."""
        if not self._kept:
            self._kept = [_MemoryFile("omni-jobs-medium", KEPT_BYTES), _MemoryFile("omni-jobs-decoded", KEPT_BYTES)]
        medium, result = self._kept
        return medium, result

    def result(self, nbytes: int) -> bytearray:
        """A copy of the kept result's start."""
        copy = bytearray(nbytes)
        os.preadv(self._kept[1].descriptor, [copy], 0)
        return copy


class _MemoryFile:
    """A file in memory whose size is sealed: who maps it is never cut off. Only what is written of it takes room.

    It is closed with its last use.
    """

    def __init__(self, name: str, size: int) -> None:
        """Raises DecodersUnavailable."""
        self.size = size
        try:
            self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise DecodersUnavailable(f"no memory for a medium: {error}") from error
        self._close = weakref.finalize(self, os.close, self.descriptor)
        try:
            os.ftruncate(self.descriptor, size)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        except OSError as error:
            raise DecodersUnavailable(f"no memory for a medium: {error}") from error

    def write(self, data: bytes | memoryview) -> None:
        """Raises DecodersUnavailable when memory is short."""
        view, at = memoryview(data), 0
        try:
            while at < len(view):
                at += os.pwrite(self.descriptor, view[at:], at)
        except OSError as error:
            raise DecodersUnavailable(f"no memory for a medium: {error}") from error

    def mapped(self, nbytes: int) -> mmap.mmap:
        """Its start; changes to it are the reader's own."""
        return mmap.mmap(self.descriptor, nbytes, flags=mmap.MAP_PRIVATE)


class _Host:
    """The process of ``decoder_host``, and the thread that reads its answers."""

    def __init__(self, processes: int, memory_bytes: int) -> None:
        """Raises DecodersUnavailable when it does not start."""
        self._numbers = itertools.count()
        self._asked: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self.answers = True
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "omni_jobs.media.decoder_host", str(theirs.fileno())],
                    env=_environment(),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                )
            options = {"processes": processes, "memory_bytes": memory_bytes, "parent": os.getpid()}
            self._link.send(json.dumps(options).encode())
        except OSError as error:
            self._link.close()
            raise DecodersUnavailable(f"no decoder starts: {error}") from error
        self._reader = threading.Thread(target=self._read, name="media-wall", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, task: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """The answer; ``unavailable`` when the host has ended."""
        number = next(self._numbers)
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if not self.answers:
                return {"unavailable": "the decoders' host has ended"}
            self._asked[number] = future
        try:
            socket.send_fds(self._link, [json.dumps({**task, "id": number}).encode()], descriptors)
            return future.result(task["limit_s"] + _START_S)
        except OSError as error:  # TimeoutError is one
            self.close()
            return {"unavailable": f"the decoders' host does not answer: {error or type(error).__name__}"}
        finally:
            with self._lock:
                self._asked.pop(number, None)

    def _read(self) -> None:
        try:
            while message := self._received():
                answer = json.loads(message)
                with self._lock:
                    future = self._asked.pop(answer["id"], None)
                if future is not None:
                    future.set_result(answer)
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("the decoders' host is given up: it said what is no answer (%r)", error)
        finally:
            with self._lock:
                self.answers = False
                left, self._asked = list(self._asked.values()), {}
            for future in left:
                future.set_result({"unavailable": "the decoders' host has ended"})

    def _received(self) -> bytes:
        """The next message; none when the host has ended."""
        try:
            return self._link.recv(LONGEST_MESSAGE)
        except OSError:
            return b""

    def close(self) -> None:
        """Ask it to end, by the socket's end; kill it if it does not."""
        with self._lock:
            self.answers = False
        with suppress(OSError):  # it is gone
            self._link.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._link.close()


def _environment() -> dict[str, str]:
    """Nothing of this process's but where its modules and libraries are."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if len(os.fsencode(kept.get("TMPDIR", ""))) > _LONGEST_TMPDIR:
        del kept["TMPDIR"]  # the server of forks listens below it, and a socket's path has 107 bytes
    path = [os.path.abspath(part) for part in sys.path if part]
    return {**kept, **_SET, "PYTHONPATH": os.pathsep.join(path)}
