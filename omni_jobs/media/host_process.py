"""``HostProcess``: the decoder host, as the server that started it sees it."""

import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from omni_jobs.errors import DecodersUnavailable

logger = logging.getLogger(__name__)

LONGEST_MESSAGE = 1 << 18  # bytes of one task or answer as JSON
_ANSWER_S = 60.0  # added to a task's own limit; a host that answers later is replaced
_CLOSE_S = 10.0  # then the host is killed

# The environment of the host and its decoders: the variables that are kept, and those that are set.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
_LONGEST_TMPDIR = 60  # bytes
_SET = {
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # a decoder keeps the memory that it frees, because new pages cost time
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONNOUSERSITE": "1",
}


class HostProcess:
    """A running decoder host, which runs tasks for the wall until ``answers`` is False. Safe for threads."""

    def __init__(self, processes: int, memory_bytes: int) -> None:
        """Start a host with ``processes`` decoders of ``memory_bytes`` each. Raise DecodersUnavailable if it fails."""
        self._ids = itertools.count()
        self._pending: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self.answers = True  # False once the host has ended or was closed
        self._socket, host_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with host_socket:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "omni_jobs.media.decoder_host", str(host_socket.fileno())],
                    env=_environment(),
                    pass_fds=(host_socket.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    cwd="/",  # where a file named ._ lies, libsndfile opens no MP3
                )
            options = {"processes": processes, "memory_bytes": memory_bytes, "parent": os.getpid()}
            self._socket.send(json.dumps(options).encode())
        except OSError as error:
            self._socket.close()
            raise DecodersUnavailable(f"no decoder starts: {error}") from error
        self._reader = threading.Thread(target=self._read, name="media-wall", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The host's process id."""
        return self._process.pid

    def execute(self, task: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Let a decoder run a task, and return the answer of ``decoder.run``; raise nothing.

        ``descriptors`` are those of the files for the medium, the result and a large result. The answer is instead
        ``{"ended": why}`` if the medium ended its decoder, ``{"unavailable": why}`` if no decoder ran it to its end.
        A host that answers too late is closed.
        """
        task_id = next(self._ids)
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if not self.answers:
                return {"unavailable": "the decoders' host has ended"}
            self._pending[task_id] = future
        try:
            socket.send_fds(self._socket, [json.dumps({**task, "id": task_id}).encode()], descriptors)
            return future.result(task["limit_s"] + _ANSWER_S)
        except OSError as error:  # TimeoutError included
            self.close()
            return {"unavailable": f"the decoders' host does not answer: {error or type(error).__name__}"}
        finally:
            with self._lock:
                self._pending.pop(task_id, None)

    def _read(self) -> None:
        try:
            while message := self._socket.recv(LONGEST_MESSAGE):
                answer = json.loads(message)
                with self._lock:
                    future = self._pending.pop(answer["id"], None)
                if future is not None:
                    future.set_result(answer)
        except OSError:
            pass  # the host has ended
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("the decoders' host is given up because its answer is malformed: %r", error)
        finally:
            with self._lock:
                self.answers = False
                unanswered, self._pending = list(self._pending.values()), {}
            for future in unanswered:
                future.set_result({"unavailable": "the decoders' host has ended"})

    def close(self) -> None:
        """End the host by closing its socket; kill it if it runs ten seconds later."""
        with self._lock:
            self.answers = False
        with suppress(OSError):  # the host has closed its end
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._socket.close()


def _environment() -> dict[str, str]:
    """Return the host's environment: no credentials, only where modules and libraries are."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if len(os.fsencode(kept.get("TMPDIR", ""))) > _LONGEST_TMPDIR:
        del kept["TMPDIR"]  # the fork server's socket lies below it, and a socket's path may have 107 bytes
    path = [os.path.abspath(part) for part in sys.path if part]
    return {**kept, **_SET, "PYTHONPATH": os.pathsep.join(path)}
