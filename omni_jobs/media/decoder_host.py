"""The process between a server and its decoders: ``python -m omni_jobs.media.decoder_host SOCKET``.

It was started with an environment that holds no credentials, and everything below it inherits that one:
pebble's pool, the server that decoders are forked from, and the decoders. It reads tasks from its socket and
writes answers, one JSON message each; only here, where there is nothing to steal, is unpickled what
decoders say. It ends with its parent, and the decoders with it.
"""

from __future__ import annotations

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

from omni_jobs.media.wall import LONGEST_MESSAGE, ending_of

__all__ = ["main"]

_TASKS_EACH = 1_000  # then a decoder is replaced: what a library leaked goes with it


class _Host:
    def __init__(self, link: socket.socket, *, processes: int, memory_bytes: int) -> None:
        self._link = link
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
        """Until the socket's other end is closed, or the parent is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            if parent >= 0:
                selector.register(parent, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if parent in ready:
                    return
                message, descriptors, _, _ = socket.recv_fds(self._link, LONGEST_MESSAGE, 3, socket.MSG_CMSG_CLOEXEC)
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
        except RuntimeError:  # the pool is broken: it says so once, and would for ever
            broken, self._pool = self._pool, self._new_pool()
            broken.stop()  # type: ignore[no-untyped-call]
            broken.join()
            return self._pool.schedule(call, timeout=limit_s)

    def _done(self, number: int, descriptors: list[int], future: Future[Any]) -> None:
        """On a thread of pebble's."""
        try:
            answer = future.result()
        except TimeoutError:
            answer = {"ended": "time"}
        except ProcessExpired as expired:
            answer = ending_of(expired.exitcode)
        except Exception as error:  # noqa: BLE001 — pebble's: the pool broke, whatever of it
            answer = {"unavailable": f"the decoders broke: {type(error).__name__}: {error}"}
        self._answer(number, descriptors, answer)

    def _answer(self, number: int, descriptors: list[int], answer: Mapping[str, Any]) -> None:
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            message = json.dumps({**answer, "id": number}).encode()
        except (TypeError, ValueError, RecursionError):  # a decoder that was taken over can say anything
            message = b""
        if not 0 < len(message) <= LONGEST_MESSAGE:
            message = json.dumps({"unavailable": "a decoder said what is no answer", "id": number}).encode()
        with self._sending, suppress(OSError):  # its reader is gone, and this process soon as well
            self._link.send(message)

    def close(self) -> None:
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are the parent's, which ends this process when it is done
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    options = json.loads(link.recv(LONGEST_MESSAGE))
    host = _Host(link, processes=options["processes"], memory_bytes=options["memory_bytes"])
    parent = _watched(options["parent"])
    try:
        host.serve(parent)
    finally:
        host.close()


def _watched(pid: int) -> int:
    """A descriptor that is ready once the process is gone; -1 where there is none such."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        sys.exit(0)
    except (AttributeError, OSError):  # the socket's end says the same, unless a child of the parent holds it
        return -1
    if os.getppid() != pid:
        sys.exit(0)
    return watched


if __name__ == "__main__":
    main()
