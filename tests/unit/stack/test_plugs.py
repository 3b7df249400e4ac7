"""Plugs: each order has an answer of its own, and a child that is unplugged is not taken for one that crashes."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from omni_jobs.errors import Conflict, ServerBusy
from omni_jobs.stack import plugs as plugs_module
from omni_jobs.stack.child import API, BACKOFF_S, RESCUER, VALKEY, Child, ChildState
from omni_jobs.stack.plugs import PlugBoard, Plugs, Pull

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def child_of(name: str, directory: Path) -> Child:
    return Child(name, SLEEP, environment={}, directory=directory, log=directory / f"{name}.log")


@pytest.fixture
def pulls() -> "Queue[Pull]":
    return Queue()


@pytest.fixture
def board(pulls: "Queue[Pull]", tmp_path: Path) -> Iterator[PlugBoard]:
    children = [child_of(name, tmp_path) for name in (VALKEY, API, RESCUER, "worker echo.first")]
    with closing(PlugBoard()) as board:
        board.open(children, pulls.put)
        yield board


@pytest.fixture
def plugs(board: PlugBoard) -> Iterator[Plugs]:
    with closing(Plugs(os.dup(board.fd))) as plugs:  # as a process that inherits it
        yield plugs


def pulled(plugs: Plugs, answer: Callable[[Pull], None], pulls: "Queue[Pull]") -> Pull:
    """Pull a plug; the supervisor's side does ``answer`` on its own thread."""
    seen: list[Pull] = []

    def supervise() -> None:
        seen.append(pulls.get())
        answer(seen[0])

    thread = Thread(target=supervise)
    thread.start()
    try:
        plugs.pull("worker echo.first", "key-1")
    finally:
        thread.join()
    return seen[0]


def test_who_looks_sees_the_children_but_the_rescuer(plugs: Plugs) -> None:
    assert [tuple(view) for view in plugs.views()] == [
        (name, ChildState.WAITING, 0) for name in (VALKEY, API, "worker echo.first")
    ]


def test_an_order_is_granted_or_refused_with_its_reason(plugs: Plugs, pulls: "Queue[Pull]") -> None:
    pull = pulled(plugs, Pull.grant, pulls)
    assert (pull.child, pull.by) == ("worker echo.first", "key-1")
    with pytest.raises(Conflict, match="it starts"):
        pulled(plugs, lambda pull: pull.refuse("it starts"), pulls)


def test_an_order_that_is_dropped_is_no_kill(
    plugs: Plugs, pulls: "Queue[Pull]", monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServerBusy, match="no answer"):
        pulled(plugs, lambda pull: pull._answer.close(), pulls)
    monkeypatch.setattr(plugs_module, "_ANSWER_S", 0.05)
    with pytest.raises(ServerBusy, match="no answer"):
        plugs.pull("worker echo.first", "key-1")  # nobody takes it from the queue
    pulls.get().refuse("the stack stops")


def test_an_answer_to_a_process_that_is_gone_reaches_nobody(
    board: PlugBoard, pulls: "Queue[Pull]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugs_module, "_ANSWER_S", 0.05)
    with closing(Plugs(os.dup(board.fd))) as killed, pytest.raises(ServerBusy):
        killed.pull(API, "key-1")
    pulls.get().grant()
    monkeypatch.setattr(plugs_module, "_ANSWER_S", 15.0)
    with closing(Plugs(os.dup(board.fd))) as successor:
        assert len(successor.views()) == 3  # it hears what it asks for


def test_a_child_that_is_unplugged_starts_at_once_however_often(tmp_path: Path) -> None:
    child, exits = child_of("worker", tmp_path), Queue[int]()

    def ended() -> None:
        assert exits.get(timeout=30) == child.pid

    for number in range(len(BACKOFF_S) + 1):
        child.start(exits.put)
        child.mark_ready()
        child.unplug()
        ended()
        assert child.schedule_restart() == 0.0
        assert child.restarts == number + 1
    pauses = []
    for _ in range(3):
        child.start(exits.put)
        child.kill()  # by somebody else
        ended()
        pauses.append(child.schedule_restart())
    assert pauses == list(BACKOFF_S[:3])
