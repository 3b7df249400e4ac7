"""The process between a server and its decoders: ``python -m omni_jobs.media.decoder_host SOCKET``.

``host_process`` starts it with an environment without credentials, which pebble's pool, the fork server and the
decoders inherit. It reads tasks from its socket and writes answers, one JSON message each. Pebble unpickles the
decoders' answers here, where there is nothing to steal. It ends with its parent, and the decoders end with it.
"""

import json
import multiprocessing
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

from pebble import ProcessExpired, ProcessPool

from omni_jobs.media.host_process import LONGEST_MESSAGE

_TASKS_EACH = 1_000  # then a decoder is replaced, because libraries leak


def answer_of_exit(status: int) -> dict[str, Any]:
    """Return ``{"ended": why}`` or ``{"unavailable": why}`` for a task, by its decoder's exit status; -N is signal N.

    ``ended`` blames the medium: a library crashed, or a limit of the decoder was exceeded. ``unavailable`` does not:
    an operator, the OOM killer or a dying parent sends SIGTERM, SIGKILL and real-time signals, multiprocessing exits
    with a positive status when it has lost its fork server, and pebble when it has lost its channel.
    """
    if status >= 0:
        return {"unavailable": f"the decoder ended with status {status}"}
    if status in (-signal.SIGTERM, -signal.SIGKILL):
        return {"unavailable": f"the decoder was stopped ({signal.Signals(-status).name})"}
    if -status >= signal.SIGRTMIN:  # no library raises these
        return {"unavailable": f"the decoder was stopped (signal {-status})"}
    if status == -signal.SIGXCPU:
        return {"ended": "time"}
    return {"ended": signal.Signals(-status).name}


class _Host:
    """Pebble's pool of decoders behind one socket."""

    def __init__(self, connection: socket.socket, *, processes: int, memory_bytes: int) -> None:
        self._socket = connection
        self._processes = processes
        self._memory_bytes = memory_bytes
        self._sending = Lock()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["omni_jobs.media.decoder"])
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPool:
        from omni_jobs.media.decoder import confine

        return ProcessPool(
            self._processes,
            max_tasks=_TASKS_EACH,
            initializer=confine,
            initargs=(self._memory_bytes,),
            context=self._context,
        )

    def serve(self, parent: int) -> None:
        """Run tasks until the socket is closed or the parent ends, whose pidfd is ``parent``; -1 if it has none."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            if parent >= 0:
                selector.register(parent, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if parent in ready:
                    return
                message, descriptors, _, _ = socket.recv_fds(self._socket, LONGEST_MESSAGE, 3, socket.MSG_CMSG_CLOEXEC)
                if not message:
                    return
                self._start(json.loads(message), descriptors)

    def _start(self, task: dict[str, Any], descriptors: list[int]) -> None:
        from omni_jobs.media.decoder import run

        paths = [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in descriptors]
        task["medium"], task["result"], task["large"] = paths
        try:
            future = self._schedule(partial(run, task), task["limit_s"])
        except (OSError, RuntimeError) as error:
            self._answer(task["id"], descriptors, {"unavailable": f"no decoder starts: {error!r}"})
            return
        future.add_done_callback(partial(self._done, task["id"], descriptors))

    def _schedule(self, call: Any, limit_s: float) -> Future[Any]:
        try:
            return self._pool.schedule(call, timeout=limit_s)
        except RuntimeError:  # a broken pool stays broken
            broken, self._pool = self._pool, self._new_pool()
            broken.stop()  # type: ignore[no-untyped-call]
            broken.join()
            return self._pool.schedule(call, timeout=limit_s)

    def _done(self, task_id: int, descriptors: list[int], future: Future[Any]) -> None:
        """Answer a task that has ended. Pebble calls this on a thread of its own."""
        try:
            answer = future.result()
        except TimeoutError:
            answer = {"ended": "time"}
        except ProcessExpired as expired:
            answer = answer_of_exit(expired.exitcode)
        except Exception as error:  # noqa: BLE001 — pebble raises anything when its pool breaks
            answer = {"unavailable": f"the decoders broke: {type(error).__name__}: {error}"}
        self._answer(task_id, descriptors, answer)

    def _answer(self, task_id: int, descriptors: list[int], answer: Mapping[str, Any]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            message = json.dumps({**answer, "id": task_id}).encode()
        except (TypeError, ValueError, RecursionError):  # a decoder that was taken over may answer anything
            message = b""
        if not 0 < len(message) <= LONGEST_MESSAGE:
            message = json.dumps({"unavailable": "a decoder's answer is malformed", "id": task_id}).encode()
        with self._sending, suppress(OSError):  # the server is gone, and this process ends next
            self._socket.send(message)

    def close(self) -> None:
        """End all decoders, and wait for their end."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()


def main() -> None:
    """Serve the server at the other end of the socket that the command line names, until either ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent handles them and then ends this process
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    options = json.loads(connection.recv(LONGEST_MESSAGE))
    host = _Host(connection, processes=options["processes"], memory_bytes=options["memory_bytes"])
    parent = _open_pidfd(options["parent"])
    try:
        host.serve(parent)
    finally:
        host.close()


def _open_pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the parent ends; -1 where the kernel has no pidfds."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        sys.exit(0)
    except (AttributeError, OSError):  # then only a closed socket ends this process
        return -1
    if os.getppid() != pid:
        sys.exit(0)
    return pidfd


if __name__ == "__main__":
    main()
