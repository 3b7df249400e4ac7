"""Captures: rows by position, kept until taken, never without bound."""

from __future__ import annotations

import numpy as np
import torch

from workers.runners.captures import Capture, CaptureStore, HostCopies


def capture(key: str = "k", prompt: int = 3) -> Capture:
    return Capture(key, prompt, np.zeros(prompt, dtype=np.bool_))


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None].expand(-1, 2)


def test_rows_stand_at_their_positions_however_they_come() -> None:
    found = capture()
    found.write(2, rows(2, 3))
    assert found.missing(4) == [0, 1]
    found.write(0, rows(0, 1))
    found.write(1, rows(1, 2))  # recomputed after a preemption
    assert found.missing(4) == []
    assert found.missing(6) == [4, 5]
    assert found.rows is not None
    assert found.rows[:4, 0].tolist() == [0, 1, 2, 3]


def test_rows_grow_past_the_first_capacity_and_keep_what_was_there() -> None:
    found = capture(prompt=1)
    for position in range(1000):
        found.write(position, rows(position))
    assert found.rows is not None
    assert found.rows[:1000, 1].tolist() == list(range(1000))
    assert found.missing(1000) == []


def test_nothing_captured_is_all_missing() -> None:
    assert capture().missing(3) == [0, 1, 2]
    assert capture().nbytes == 0


def test_a_capture_outlives_its_request_until_taken() -> None:
    store = CaptureStore(max_closed=2)
    store.open("r", capture())
    assert "r" in store
    assert store
    store.close("r")
    assert "r" not in store
    assert not store
    assert store.take("k") is not None
    assert store.take("k") is None
    assert store.held == 0


def test_take_before_the_request_leaves_the_batch() -> None:
    store = CaptureStore(max_closed=2)
    store.open("r", capture())
    assert store.take("k") is not None
    assert "r" not in store
    store.close("r")
    assert store.held == 0


def test_drop_frees_a_running_and_an_unknown_one() -> None:
    store = CaptureStore(max_closed=2)
    store.open("r", capture())
    store["r"].write(0, rows(1))
    assert store.held_bytes > 0
    store.drop("k")
    store.drop("unknown")
    assert (store.held, store.held_bytes, bool(store)) == (0, 0, False)


def test_captures_nobody_takes_are_bounded_the_oldest_go() -> None:
    store = CaptureStore(max_closed=2)
    for n in range(5):
        store.open(f"r{n}", capture(f"k{n}"))
        store.close(f"r{n}")
    assert store.held == 2
    assert store.take("k2") is None
    assert store.take("k3") is not None


def test_on_the_cpu_a_step_is_delivered_at_once_without_a_copy_to_the_host() -> None:
    copies = HostCopies(max_rows=8)
    first, second = capture("a"), capture("b")
    copies.push(rows(1, 2, 3), [(first, 0, 0, 2), (second, 5, 2, 3)])
    assert first.rows is not None
    assert second.rows is not None
    assert first.rows[:2, 0].tolist() == [1, 2]
    assert second.rows[5, 0].item() == 3
    assert copies.copies == 0
    copies.flush()
