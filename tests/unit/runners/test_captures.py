"""Captures: rows by position, kept until taken, never without bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from workers.runners.ar.captures import Capture, CaptureStore, CopyRing


def capture(key: str = "k", prompt: int = 3) -> Capture:
    return Capture(key, prompt, np.zeros(prompt, dtype=np.bool_), max_rows=16)


def rows(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)[:, None].repeat(1, 2)


def write(found: Capture, position: int, step: torch.Tensor) -> None:
    """Write a whole step."""
    CopyRing(max_rows=len(step), buffers=0).push(step, [(found, position, 0, len(step))])


def test_rows_stand_at_their_positions_however_they_come() -> None:
    found = capture()
    write(found, 2, rows(2, 3))
    assert found.missing(4) == [0, 1]
    write(found, 0, rows(0, 1))
    write(found, 1, rows(1, 2))  # recomputed after a preemption
    assert found.missing(4) == []
    assert found.missing(6) == [4, 5]
    assert found.rows is not None
    assert found.rows[:4, 0].tolist() == [0, 1, 2, 3]


def test_rows_behind_those_that_were_reserved_are_dropped() -> None:
    found = Capture("k", 1, np.zeros(1, dtype=np.bool_), max_rows=3)
    write(found, 0, rows(0))
    write(found, 1, rows(1, 2, 3))
    write(found, 4, rows(4))
    assert found.rows is not None
    assert found.rows[:, 1].tolist() == [0, 1, 2]
    assert found.missing(5) == [3, 4]


def test_a_step_that_ran_too_far_is_not_taken() -> None:
    """With async scheduling, or a stop string, one token more than is kept may be computed."""
    found = capture()
    write(found, 0, rows(0, 1, 2))
    write(found, 3, rows(9))
    assert found.missing(3) == []
    assert found.rows is not None
    assert found.rows[:3, 0].tolist() == [0, 1, 2]


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


def test_take_frees_a_running_and_knows_no_unknown_one() -> None:
    store = CaptureStore(max_closed=2)
    store.open("r", capture())
    write(store["r"], 0, rows(1))
    assert store.held_bytes > 0
    store.take("k")
    store.take("unknown")
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
    copies = CopyRing(max_rows=8, buffers=0)
    first, second = capture("a"), capture("b")
    copies.push(rows(1, 2, 3), [(first, 0, 0, 2), (second, 5, 2, 3)])
    assert first.rows is not None
    assert second.rows is not None
    assert first.rows[:2, 0].tolist() == [1, 2]
    assert second.rows[5, 0].item() == 3
    assert copies.copies == 0
    copies.flush()


class Device:
    """A device's queue as the ring sees it: what it allocates, and in which order it is asked what."""

    def __init__(self) -> None:
        self.buffers: list[torch.Tensor] = []
        self.asked: list[str] = []

    def allocate(self, count: int, like: torch.Tensor) -> torch.Tensor:
        self.buffers.append(torch.full((count, like.shape[1]), 255, dtype=torch.uint8))
        return self.buffers[-1]

    def event(self, device: torch.device) -> Mark:
        return Mark(self, len(self.buffers) - 1)

    def ring(self, **options: int) -> CopyRing:
        return CopyRing(max_rows=8, allocate=self.allocate, event=self.event, **options)


class Mark:
    def __init__(self, device: Device, number: int) -> None:
        self._device, self._number = device, number

    def record(self) -> None:
        self._device.asked.append(f"copy {self._number}")

    def synchronize(self) -> None:
        self._device.asked.append(f"wait {self._number}")


@pytest.mark.parametrize("batch", [1, 8])
def test_one_copy_per_step_into_reused_buffers_and_no_wait_in_the_step(batch: int) -> None:
    device = Device()
    ring = device.ring()
    found = [capture(str(n)) for n in range(batch)]
    for step in range(5):
        ring.push(rows(*(10 * step + n for n in range(batch))), [(found[n], step, n, n + 1) for n in range(batch)])
    assert ring.copies == 5
    assert len(device.buffers) == 2
    # The third step waits for the first's copy, which is long done.
    assert device.asked == [
        *("copy 0", "copy 1"),
        *("wait 0", "copy 0"),
        *("wait 1", "copy 1"),
        *("wait 0", "copy 0"),
    ]
    for n, one in enumerate(found):
        assert one.missing(5) == [3, 4]
        assert one.rows is not None
        assert one.rows[:3, 0].tolist() == [n, 10 + n, 20 + n]
    ring.flush()
    ring.flush()
    assert device.asked[-2:] == ["wait 1", "wait 0"]
    for n, one in enumerate(found):
        assert one.missing(5) == []
        assert one.rows is not None
        assert one.rows[:5, 0].tolist() == [10 * step + n for step in range(5)]


def test_a_short_step_after_a_long_one_leaves_nothing_of_it_behind() -> None:
    ring = Device().ring(buffers=1)
    long, short = capture("long"), capture("short")
    ring.push(rows(1, 2, 3, 4), [(long, 0, 0, 4)])
    ring.push(rows(5), [(short, 7, 0, 1)])
    ring.flush()
    assert long.missing(4) == []
    assert short.missing(8) == list(range(7))
    assert short.rows is not None
    assert short.rows[7, 0].item() == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_copies_are_pinned_and_the_same_bits() -> None:
    copies = CopyRing(max_rows=8)
    found = capture()
    steps = [torch.randint(256, (2, 64), device="cuda", dtype=torch.uint8) for _ in range(7)]
    for n, step in enumerate(steps):
        copies.push(step, [(found, 2 * n, 0, 2)])
    copies.flush()
    assert copies.copies == 7
    assert found.rows is not None
    assert torch.equal(found.rows[:14], torch.cat(steps).cpu())
