"""Plugs: how the API sees the embedded stack's children, and has one of them killed, through a socket that it inherits.

    Plugs, in the API  →  an order, and a socket for its answer  →  PlugBoard, in the supervisor's process

An order names a child, and never a process id. It brings a socket of its own for the answer, because the API may be
the child that is killed: what is answered to a process that is gone then reaches nobody, and not its successor.
"""

import json
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from omni_jobs.errors import Conflict, ServerBusy
from omni_jobs.stack.child import RESCUER, Child, ChildState

_ANSWER_S: Final = 15.0  # the supervisor waits this long for an API that hangs, and for a database that is busy
_MOST_BYTES: Final = 64 << 10  # of an order or an answer


class PlugView(NamedTuple):
    """A child whose plug may be pulled, at one moment."""

    child: str
    state: ChildState
    restarts: int


class Pull:
    """An order to kill a child. The supervisor grants or refuses it; one that is dropped counts as refused."""

    def __init__(self, child: str, by: str, answer: socket.socket) -> None:
        """``child``: its name, which may be none. ``by``: the actor whom the audit names."""
        self.child = child
        self.by = by
        self._answer = answer

    def grant(self) -> None:
        """Answer that the child is killed."""
        _send(self._answer, {"refused": None})

    def refuse(self, why: str) -> None:
        """Answer that the child is not killed."""
        _send(self._answer, {"refused": why})


class PlugBoard:
    """The supervisor's end: it answers who looks, and hands on who pulls a plug. ``close`` it."""

    def __init__(self) -> None:
        self._orders, self._of_api = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread: threading.Thread | None = None

    @property
    def fd(self) -> int:
        """The descriptor that each process of the API inherits, for its ``Plugs``."""
        return self._of_api.fileno()

    def open(self, children: Sequence[Child], on_pull: Callable[[Pull], None]) -> None:
        """Begin to take orders, on a thread, which gives each ``Pull`` to ``on_pull``."""
        self._thread = threading.Thread(
            target=self._take_orders, args=(children, on_pull), name="plug-board", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Take no further orders."""
        self._orders.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        self._orders.close()
        self._of_api.close()

    def _take_orders(self, children: Sequence[Child], on_pull: Callable[[Pull], None]) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._orders, _MOST_BYTES, 1)
            if not data:
                return
            for descriptor in descriptors:
                answer = socket.socket(fileno=descriptor)
                answer.setblocking(False)
                order = json.loads(data)
                if order["pull"] is None:
                    _send(answer, {"plugs": _views(children)})
                else:
                    on_pull(Pull(order["pull"], order["by"], answer))


def has_plug(child: Child) -> bool:
    """Return whether a child may be killed by an order: all but the rescuer, whose death nobody would see."""
    return child.name != RESCUER


def _views(children: Sequence[Child]) -> list[PlugView]:
    views = (child.view() for child in children if has_plug(child))
    return [PlugView(view.name, view.state, view.restarts) for view in views]


def _send(answer: socket.socket, message: dict[str, Any]) -> None:
    with answer, suppress(OSError):  # who asked is gone, or was killed
        answer.send(json.dumps(message).encode())


class Plugs:
    """The API's end. Safe for threads; a call waits for its answer. ``close`` it."""

    def __init__(self, fd: int) -> None:
        """``fd``: that of a ``PlugBoard``, inherited."""
        self._orders = socket.socket(fileno=fd)
        self._orders.settimeout(_ANSWER_S)

    def views(self) -> list[PlugView]:
        """Return the children whose plugs may be pulled, Valkey first. Raises ServerBusy without an answer."""
        plugs = self._ask(pull=None, by="")["plugs"]
        return [PlugView(child, ChildState(state), restarts) for child, state, restarts in plugs]

    def pull(self, child: str, by: str) -> None:
        """Have a child killed; it is started anew at once. Of the API itself, this may not return.

        ``by``: the actor whom the audit names. Raises Conflict, which says why the child is not killed, and ServerBusy
        without an answer.
        """
        refused = self._ask(pull=child, by=by)["refused"]
        if refused is not None:
            raise Conflict(refused, field="process")

    def close(self) -> None:
        """Close the descriptor."""
        self._orders.close()

    def _ask(self, **order: str | None) -> dict[str, Any]:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine:
            with its:
                mine.settimeout(_ANSWER_S)
                try:
                    socket.send_fds(self._orders, [json.dumps(order).encode()], [its.fileno()])
                except OSError as error:
                    raise ServerBusy(f"the stack's supervisor takes no order: {error.strerror}") from None
            try:
                answer = mine.recv(_MOST_BYTES)
            except OSError:
                answer = b""
        if not answer:
            raise ServerBusy("the stack's supervisor gives no answer")
        found: dict[str, Any] = json.loads(answer)
        return found
