"""What runs in a decoder: the process that reads bytes no one can trust. ``decoder_host`` starts it.

A decoder has no credentials, cannot write files, and ends when it takes more memory or processor time
than it may. Bytes come and go through files in memory that its client made, so that a result is a few
plain values.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import InvalidRequest, RequestTooLarge

# Loaded by the server that decoders are forked from, so that a new one is there at once.
from omni_jobs.media.audio import decode_audio, header_of_audio, probe_audio
from omni_jobs.media.image import decode_image, header_of_image, probe_image
from omni_jobs.media.limits import MediaLimits
from omni_jobs.media.video import decode_video, header_of_video, probe_video
from omni_jobs.media.wall import KEPT_BYTES

if TYPE_CHECKING:
    import numpy as np

__all__ = ["confine", "run"]

_DESCRIPTORS = 64
_NICE = 10
_SLACK_BYTES = 64 << 20  # of address space: the interpreter's own

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38

_memory_bytes = 0
_base_bytes = 0
_kept: dict[int, mmap.mmap] = {}  # the files that results are left in again and again, by inode


def confine(memory_bytes: int) -> None:
    """Take from this process what a decoder does not need; it may map ``memory_bytes`` above what it has now."""
    global _memory_bytes, _base_bytes
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler would wait for C code that never returns
    os.nice(_NICE)  # who serves comes first
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the libraries' own complaints, of which a hostile file can cause any number
        os.dup2(nothing, stream)
    os.close(nothing)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    with open("/proc/self/statm", encoding="ascii") as statm:
        _base_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    _memory_bytes = memory_bytes


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Do one task; nothing but plain values comes back, and no exception.

    ``task``: ``what`` (the function), the paths of ``medium``, ``result`` and ``large``, the medium's bytes
    (``input``), those that a result may have (``room``), ``limits``, ``options``, ``cpu_s``. The answer: ``ok`` or
    ``refused``, and ``cpu_s``.
    """
    before = _cpu_s()
    _, most_cpu = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(before + task["cpu_s"]) + 1, most_cpu))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    kept_bytes = (len(_kept) + 1) * KEPT_BYTES
    own_bytes = _base_bytes + _SLACK_BYTES + kept_bytes + task["input"] + task["room"]
    resource.setrlimit(resource.RLIMIT_AS, (own_bytes + _memory_bytes, hard))
    answer: dict[str, Any]
    try:
        answer = {"ok": _TASKS[task["what"]](_read(task["medium"], task["input"]), task)}
    except (InvalidRequest, RequestTooLarge) as error:
        answer = {"refused": {"code": error.code, "message": error.message}}
    except MemoryError:
        answer = {"refused": {"code": RequestTooLarge.code, "message": "it takes more memory to decode than it may"}}
    except Exception as error:  # noqa: BLE001 — whatever a library raises of bytes that are wrong, it says of the bytes
        answer = {"refused": {"code": InvalidRequest.code, "message": f"it does not decode ({type(error).__name__})"}}
    finally:  # a limit met between two tasks would end this process with the pool's lock in its hands
        resource.setrlimit(resource.RLIMIT_CPU, (most_cpu, most_cpu))
    return {**answer, "cpu_s": _cpu_s() - before}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _read(path: str, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(descriptor, size, 0)
        while len(data) < size and (more := os.pread(descriptor, size - len(data), len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


def _output(task: dict[str, Any], nbytes: int) -> mmap.mmap:
    """Where the result goes. Raises RequestTooLarge when it is larger than its reader made room for."""
    if nbytes > task["room"]:
        raise RequestTooLarge(f"{nbytes} bytes when decoded; at most {task['room']} are taken")
    descriptor = os.open(task["result"] if nbytes <= KEPT_BYTES else task["large"], os.O_RDWR | os.O_CLOEXEC)
    try:
        if nbytes > KEPT_BYTES:
            return mmap.mmap(descriptor, nbytes)
        file = os.fstat(descriptor).st_ino
        if file not in _kept:
            _kept[file] = mmap.mmap(descriptor, KEPT_BYTES)
        return _kept[file]
    finally:
        os.close(descriptor)


def _limits(task: dict[str, Any]) -> MediaLimits:
    return MediaLimits(**task["limits"])


def _put(task: dict[str, Any], array: np.ndarray[Any, Any]) -> None:
    import numpy as np

    if array.nbytes:
        there = _output(task, array.nbytes)
        np.copyto(np.frombuffer(there, array.dtype, array.size).reshape(array.shape), array)


def _decode_audio(data: bytes, task: dict[str, Any]) -> dict[str, Any]:
    samples = decode_audio(data, task["options"]["sampling_rate"], limits=_limits(task))
    _put(task, samples)
    return {"samples": len(samples)}


def _decode_image(data: bytes, task: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    image = decode_image(data, _limits(task))
    _put(task, np.asarray(image))
    return {"width": image.width, "height": image.height}


def _decode_video(data: bytes, task: dict[str, Any]) -> dict[str, Any]:
    import numpy as np

    def room(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        return np.frombuffer(_output(task, math.prod(shape)), np.uint8, math.prod(shape)).reshape(shape)

    frames, metadata = decode_video(data, limits=_limits(task), room=room)
    return {"shape": list(frames.shape), "metadata": metadata}


_TASKS: dict[str, Callable[[bytes, dict[str, Any]], dict[str, Any]]] = {
    "audio.header": lambda data, task: asdict(header_of_audio(data, _limits(task))),
    "image.header": lambda data, task: asdict(header_of_image(data, _limits(task))),
    "video.header": lambda data, task: asdict(header_of_video(data, _limits(task))),
    "audio.probe": lambda data, task: asdict(probe_audio(data, _limits(task), **task["options"])),
    "image.probe": lambda data, task: asdict(probe_image(data, _limits(task))),
    "video.probe": lambda data, task: asdict(probe_video(data, _limits(task))),
    "audio.decode": _decode_audio,
    "image.decode": _decode_image,
    "video.decode": _decode_video,
}
