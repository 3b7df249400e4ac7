"""The line of hints: the oldest first, a suspect's by itself."""

import pytest

from workers.execution.waiting_hints import WaitingHints


@pytest.fixture
def line() -> WaitingHints:
    waiting = WaitingHints()
    for number in range(4):
        waiting.add((number, 0))
    return waiting


def test_hints_are_taken_oldest_first_up_to_the_room_there_is(line: WaitingHints) -> None:
    assert line.take(3, idle=False) == [(0, 0), (1, 0), (2, 0)]
    assert line.take(3, idle=False) == [(3, 0)]
    assert line.take(3, idle=False) == []


def test_nothing_is_taken_without_room(line: WaitingHints) -> None:
    assert line.take(0, idle=True) == []
    assert line.clear() == 4


def test_a_suspect_waits_for_an_idle_worker_and_everything_else_waits_behind_it(line: WaitingHints) -> None:
    line.set_apart((9, 1))
    assert line.has_suspects
    assert line.take(8, idle=False) == []
    assert line.take(8, idle=True) == [(9, 1)]
    assert not line.has_suspects
    assert line.take(8, idle=False) == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_one_suspect_is_taken_at_a_time(line: WaitingHints) -> None:
    line.set_apart((8, 1))
    line.set_apart((9, 1))
    line.set_apart((9, 1))  # told twice
    assert [line.take(8, idle=True) for _ in range(3)] == [[(9, 1)], [(8, 1)], [(0, 0), (1, 0), (2, 0), (3, 0)]]


def test_a_cleared_line_forgets_its_suspects(line: WaitingHints) -> None:
    line.set_apart((9, 1))
    assert line.clear() == 5
    assert not line.has_suspects
    assert line.take(8, idle=True) == []
