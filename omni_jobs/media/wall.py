"""``MediaWall``: the server's side of the wall behind which audio, images and video are decoded.

    server  ──socket: JSON──▶  decoder_host  ──pebble──▶  decoders, forked from a clean server
       └────────── bytes of media and results: files in memory (memfd) ──────────────┘

A decoder reads bytes that anyone may have made, with libraries written in C. It inherits a scrubbed environment and
nothing else of the server, has limits on memory, processor time, files and descriptors, and is killed when its time is
over. A medium that a decoder refuses, or that kills its decoder, is the request's error: InvalidRequest or
RequestTooLarge. A failure that no request caused is DecodersUnavailable, and the medium may be decoded again.

The wall does not confine a decoder that an attacker has taken over to less than the server's user. Such a decoder can
make the host unpickle anything, and read every file of that user, the server's /proc and other requests' media
included. The server itself reads JSON and files of a sealed size, and unpickles nothing.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import DecodersUnavailable, InvalidRequest, OmniJobsError, RequestTooLarge
from omni_jobs.media.formats import Kind
from omni_jobs.media.host_process import HostProcess
from omni_jobs.media.info import SAMPLING_RATE, AudioInfo, ImageInfo, MediaInfo, VideoInfo
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.shared_memory import KEPT_BYTES, Exchange, MemoryFile

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from omni_jobs.settings import Settings

logger = logging.getLogger(__name__)

# A task's limit by the clock is this many times its limit of processor time, because the host may be busy.
_CLOCK_PER_CPU = 3
_INFOS: Mapping[str, type[MediaInfo]] = {"audio": AudioInfo, "image": ImageInfo, "video": VideoInfo}
_REFUSALS: Mapping[str, type[OmniJobsError]] = {kind.code: kind for kind in (InvalidRequest, RequestTooLarge)}


@dataclass(slots=True)
class MediaBudget:
    """The processor time, in seconds, that decoders may yet take for the media of one submit."""

    left_s: float


class MediaWall:
    """A context manager that has media read by decoders, for an API server's intake or a worker. Safe for threads.

    The first medium starts the decoders, and ``close`` ends them. Methods that take a medium raise InvalidRequest for
    one that does not decode or ends its decoder, RequestTooLarge for one beyond the limits, its budget or its time, and
    DecodersUnavailable if the wall is closed, broken or short of memory, or a submit's medium finds no free decoder
    within ``decoders_wait_s`` or too many that wait.
    """

    def __init__(self, settings: Settings) -> None:
        self._limits = asdict(MediaLimits.of(settings))
        self._processes = settings.decoders or min(max(2, os.cpu_count() or 2), 8)
        self._memory_bytes = settings.decoder_memory_bytes
        self._decode_limit_s = settings.decode_limit_s
        self._probe_limit_s = settings.probe_limit_s
        self._wait_s = settings.decoders_wait_s
        self._turns = _Turns(self._processes, settings.decoders_waiting)
        self._lock = threading.Lock()
        self._host: HostProcess | None = None
        self._closed = False

    @property
    def capacity(self) -> int:
        """The number of media of submits that can be in decoders, or wait for one, at once."""
        return self._processes + self._turns.max_waiting

    @property
    def pid(self) -> int | None:
        """The process id of the decoders' host; None before the first medium and after ``close``."""
        return self._host.pid if self._host is not None else None

    # For a submit: measure a medium and keep nothing of it.

    def budget(self) -> MediaBudget:
        """Return a fresh budget for the media of one submit."""
        return MediaBudget(self._probe_limit_s)

    def header(self, kind: Kind, data: bytes | memoryview, budget: MediaBudget) -> MediaInfo:
        """Return what a medium's header states, or a lower bound where it states no size; decode nothing."""
        return self._measure(kind, data, "header", {}, budget)

    def probe(
        self, kind: Kind, data: bytes | memoryview, budget: MediaBudget, *, enough_s: float | None = None
    ) -> MediaInfo:
        """Decode as much of a medium as is needed to know its sizes, and return them as a MediaInfo.

        Of sound, not much more than ``enough_s`` seconds are decoded, because the model takes no more.
        """
        return self._measure(kind, data, "probe", {"enough_s": enough_s} if kind == "audio" else {}, budget)

    def _measure(
        self, kind: Kind, data: bytes | memoryview, operation: str, options: dict[str, Any], budget: MediaBudget
    ) -> MediaInfo:
        if budget.left_s <= 0:
            raise RequestTooLarge(f"the media take more than {self._probe_limit_s:g} s to decode (probe_limit_s)")
        with self._turns.one(self._wait_s) as exchange:
            answer, _ = self._run(exchange, kind, data, operation, options, 0, budget.left_s)
        with _malformed_as_unavailable():
            budget.left_s -= answer["cpu_s"]
            return _INFOS[kind](**answer["ok"])

    # For a stage run: samples and pixels. It waits for a decoder without a limit, because its worker gave it a slot.

    def decode_audio(self, data: bytes | memoryview, sampling_rate: int = SAMPLING_RATE) -> np.ndarray[Any, Any]:
        """Decode a sound in a decoder; return float32 [T], full scale 1, mono at ``sampling_rate`` Hz."""
        import numpy as np

        max_bytes = 4 * math.ceil((self._limits["max_audio_s"] + 1) * sampling_rate)
        with self._decode("audio", data, {"sampling_rate": sampling_rate}, max_bytes) as (result, read):
            return np.frombuffer(read(4 * result["samples"]), np.float32)

    def decode_image(self, data: bytes | memoryview, *, keeps_opacity: bool = False) -> Image.Image:
        """Decode an image in a decoder; return a Pillow image: RGB in sRGB, upright, on white where it is transparent.

        With ``keeps_opacity`` an image that is transparent somewhere is RGBA.
        """
        from PIL import Image

        options = {"keeps_opacity": keeps_opacity}
        most = (4 if keeps_opacity else 3) * self._limits["max_image_pixels"]
        with self._decode("image", data, options, most) as (result, read):
            width, height, channels = result["width"], result["height"], result["channels"]
            mode = "RGBA" if keeps_opacity and channels == 4 else "RGB"
            return Image.frombytes(mode, (width, height), memoryview(read(len(mode) * width * height)))

    def decode_video(self, data: bytes | memoryview) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        """Decode a video in a decoder; return its sampled frames, uint8 [F, H, W, 3] RGB, and vLLM's metadata."""
        import numpy as np

        from omni_jobs.media.video import MAX_FRAME_PIXELS, MAX_FRAMES

        with self._decode("video", data, {}, 3 * MAX_FRAMES * MAX_FRAME_PIXELS) as (result, read):
            frames = np.frombuffer(read(math.prod(result["shape"])), np.uint8)
            return frames.reshape(result["shape"]), result["metadata"]

    @contextmanager
    def _decode(
        self, kind: Kind, data: bytes | memoryview, options: dict[str, Any], max_bytes: int
    ) -> Iterator[tuple[dict[str, Any], Callable[[int], bytearray | mmap.mmap]]]:
        """Decode a medium; yield the result's description, and a function that returns the result's first n bytes."""
        with self._turns.one(None) as exchange:
            answer, large = self._run(exchange, kind, data, "decode", options, max_bytes, self._decode_limit_s)

            def read(nbytes: int) -> bytearray | mmap.mmap:
                if not 0 < nbytes <= max_bytes:
                    raise InvalidRequest(f"its decoder gave {nbytes} bytes; there is room for 1 to {max_bytes}")
                return large.map(nbytes) if nbytes > KEPT_BYTES else exchange.copy_result(nbytes)

            yield answer["ok"], read

    # One task of a decoder.

    def _run(
        self,
        exchange: Exchange,
        kind: Kind,
        data: bytes | memoryview,
        operation: str,
        options: dict[str, Any],
        max_bytes: int,
        limit_s: float,
    ) -> tuple[dict[str, Any], MemoryFile]:
        """Run one task; return its answer, which has ``ok``, and the file of a large result.

        ``max_bytes`` bounds the result; it is 0 for a task whose answer is its result.
        """
        kept_medium, kept_result = exchange.files()
        medium = kept_medium if len(data) <= KEPT_BYTES else MemoryFile("omni-jobs-medium", len(data))
        large = kept_result if max_bytes <= KEPT_BYTES else MemoryFile("omni-jobs-decoded", max_bytes)
        medium.write(data)
        task = {
            "operation": f"{kind}.{operation}",
            "input_bytes": len(data),
            "max_bytes": max_bytes,
            "options": options,
            "limits": self._limits,
            "limit_s": _CLOCK_PER_CPU * limit_s,
            "cpu_s": limit_s,
        }
        descriptors = [file.descriptor for file in (medium, kept_result, large)]
        answer = self._open_host().execute(task, descriptors)
        # A pool that breaks fails every task in flight, although one of them broke it at most. Try once more; a job's
        # own retries decide about a failure that repeats.
        if "unavailable" in answer:
            answer = self._open_host().execute(task, descriptors)
        if "ok" not in answer:
            raise _error_of(answer, kind, limit_s)
        return answer, large

    def _open_host(self) -> HostProcess:
        with self._lock:
            if self._closed:
                raise DecodersUnavailable("the decoders are closed")
            if self._host is None or not self._host.answers:
                if self._host is not None:
                    self._host.close()
                    logger.warning("the decoders are started anew: their host had ended")
                self._host = HostProcess(self._processes, self._memory_bytes)
            return self._host

    def close(self) -> None:
        """End the decoders. Calls that decode a medium or wait for a decoder then raise DecodersUnavailable."""
        with self._lock:
            self._closed = True
            host, self._host = self._host, None
        if host is not None:
            host.close()

    def __enter__(self) -> MediaWall:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _error_of(answer: Mapping[str, Any], kind: Kind, limit_s: float) -> OmniJobsError:
    """Return the error that an answer without ``ok`` means."""
    if "refused" in answer:
        with _malformed_as_unavailable():
            return _REFUSALS[answer["refused"]["code"]](str(answer["refused"]["message"]))
    if "ended" in answer:
        if answer["ended"] == "time":
            return RequestTooLarge(f"the {kind} is not decoded after {limit_s:.3g} s (probe_limit_s, decode_limit_s)")
        return InvalidRequest(f"the {kind} does not decode: its decoder ended ({answer['ended']})")
    return DecodersUnavailable(str(answer["unavailable"]))


@contextmanager
def _malformed_as_unavailable() -> Iterator[None]:
    """Raise DecodersUnavailable when a decoder's answer lacks a field or has one of another type."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise DecodersUnavailable(f"a decoder's answer is malformed: {error!r}") from None


class _Turns:
    """A bound on the media in decoders (one for each decoder) and on those that wait; each turn has an Exchange."""

    def __init__(self, decoders: int, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self._free = [Exchange() for _ in range(decoders)]
        self._waiting = 0
        self._freed = threading.Condition()

    @contextmanager
    def one(self, wait_s: float | None) -> Iterator[Exchange]:
        """Wait for a free decoder, and hold it for a block.

        Raise DecodersUnavailable when too many wait already, or after ``wait_s`` seconds. None removes both bounds.
        """
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
