"""The code of a decoder: the process that reads media which nobody can trust. ``decoder_host`` starts it.

A decoder has no credentials, cannot write files, and gets no more memory and processor time than its limits allow.
Media and results pass through files in memory that the server made; an answer consists of a few plain values.
"""

import ctypes
import math
import mmap
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from omni_jobs.errors import InvalidRequest, RequestTooLarge

# The fork server imports these modules, so that a new decoder starts at once.
from omni_jobs.media.audio import decode_audio, header_of_audio, probe_audio
from omni_jobs.media.image import decode_image, header_of_image, probe_image
from omni_jobs.media.media_limits import MediaLimits
from omni_jobs.media.shared_memory import KEPT_BYTES
from omni_jobs.media.video import decode_video, header_of_video, probe_video

_DESCRIPTORS = 64
_NICE = 10
_SLACK_BYTES = 64 << 20  # of address space, for the interpreter itself

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38

_memory_bytes = 0
_base_bytes = 0
_kept: dict[int, mmap.mmap] = {}  # mappings of the kept result files, by inode


def confine(memory_bytes: int) -> None:
    """Confine this process, a new decoder, before its first task; each task may take ``memory_bytes``."""
    global _memory_bytes, _base_bytes
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl took effect
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a Python handler never runs while C code does
    os.nice(_NICE)  # the server's own threads come first
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a hostile file can make the libraries print any number of warnings
        os.dup2(devnull, stream)
    os.close(devnull)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
    with open("/proc/self/statm", encoding="ascii") as statm:
        _base_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    _memory_bytes = memory_bytes


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Run one task and return its answer, plain values only; raise nothing.

    The task has ``operation`` (a key of ``_OPERATIONS``), the paths of the files ``medium``, ``result`` and ``large``
    (for a result over ``KEPT_BYTES``), the medium's size ``input_bytes``, the result's bound ``max_bytes``, ``limits``,
    ``options`` and ``cpu_s``, the processor time that it may take. The answer has ``ok`` with the result, or with the
    description of a result that lies in a file. Otherwise it has ``refused`` with the error's code and message. Its own
    ``cpu_s`` is the processor time that the task took. A task that takes more than it may ends the process, without an
    answer.
    """
    before = time.process_time()
    _, most_cpu = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(before + task["cpu_s"]) + 1, most_cpu))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    kept_bytes = (len(_kept) + 1) * KEPT_BYTES
    own_bytes = _base_bytes + _SLACK_BYTES + kept_bytes + task["input_bytes"] + task["max_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (own_bytes + _memory_bytes, hard))
    answer: dict[str, Any]
    try:
        with open(task["medium"], "rb") as medium:
            data = medium.read(task["input_bytes"])
        answer = {"ok": _OPERATIONS[task["operation"]](data, MediaLimits(**task["limits"]), task)}
    except (InvalidRequest, RequestTooLarge) as error:
        answer = {"refused": {"code": error.code, "message": error.message}}
    except MemoryError:
        answer = {"refused": {"code": RequestTooLarge.code, "message": "it takes more memory to decode than it may"}}
    except Exception as error:  # noqa: BLE001 — a library may raise anything because of damaged bytes
        answer = {"refused": {"code": InvalidRequest.code, "message": f"it does not decode ({type(error).__name__})"}}
    finally:  # between tasks the process holds the pool's lock, and must not end with it
        resource.setrlimit(resource.RLIMIT_CPU, (most_cpu, most_cpu))
    return {**answer, "cpu_s": time.process_time() - before}


def _result(task: dict[str, Any], shape: tuple[int, ...], dtype: type[np.generic] = np.uint8) -> np.ndarray[Any, Any]:
    """Return an array in the task's result file. Raise RequestTooLarge when it exceeds the task's ``max_bytes``."""
    count = math.prod(shape)
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes > task["max_bytes"]:
        raise RequestTooLarge(f"{nbytes} bytes when decoded; at most {task['max_bytes']} are taken")
    with open(task["result"] if nbytes <= KEPT_BYTES else task["large"], "r+b", buffering=0) as file:
        if nbytes > KEPT_BYTES:
            memory = mmap.mmap(file.fileno(), nbytes)
        else:
            inode = os.fstat(file.fileno()).st_ino
            if inode not in _kept:
                _kept[inode] = mmap.mmap(file.fileno(), KEPT_BYTES)
            memory = _kept[inode]
    return np.frombuffer(memory, dtype, count).reshape(shape)


def _decode_audio(data: bytes, limits: MediaLimits, task: dict[str, Any]) -> dict[str, Any]:
    samples = decode_audio(data, task["options"]["sampling_rate"], limits)
    _result(task, samples.shape, np.float32)[:] = samples
    return {"samples": len(samples)}


def _decode_image(data: bytes, limits: MediaLimits, task: dict[str, Any]) -> dict[str, Any]:
    image = decode_image(data, limits, keeps_opacity=task["options"]["keeps_opacity"])
    channels = len(image.getbands())
    _result(task, (image.height, image.width, channels))[:] = np.asarray(image)
    return {"width": image.width, "height": image.height, "channels": channels}


def _decode_video(data: bytes, limits: MediaLimits, task: dict[str, Any]) -> dict[str, Any]:
    frames, metadata = decode_video(data, limits, allocate=partial(_result, task))
    return {"shape": list(frames.shape), "metadata": metadata}


_OPERATIONS: dict[str, Callable[[bytes, MediaLimits, dict[str, Any]], dict[str, Any]]] = {
    "audio.header": lambda data, limits, task: asdict(header_of_audio(data, limits)),
    "image.header": lambda data, limits, task: asdict(header_of_image(data, limits)),
    "video.header": lambda data, limits, task: asdict(header_of_video(data, limits)),
    "audio.probe": lambda data, limits, task: asdict(probe_audio(data, limits, **task["options"])),
    "image.probe": lambda data, limits, task: asdict(probe_image(data, limits)),
    "video.probe": lambda data, limits, task: asdict(probe_video(data, limits)),
    "audio.decode": _decode_audio,
    "image.decode": _decode_image,
    "video.decode": _decode_video,
}
