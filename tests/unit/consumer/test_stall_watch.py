"""A worker that consumes nothing while messages wait has stalled; one that is idle, full or brokerless has not."""

import asyncio
import time
from collections.abc import Callable

import pytest

from omni_jobs.errors import BrokerUnavailable
from workers.consumer.stall_watch import StallWatch

STALL_S = 0.6


def unavailable() -> int:
    raise BrokerUnavailable("no broker")


def broken() -> int:
    raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("has_room", "depth", "reason"),
    [
        (True, lambda: 3, "3 messages wait and none was taken"),
        (True, broken, "the watch for stalls failed: RuntimeError: a bug"),
        (True, lambda: 0, None),
        (True, unavailable, None),
        (False, lambda: 3, None),
    ],
    ids=["stalled", "unchecked", "idle", "no broker", "full"],
)
async def test_what_counts_as_a_stall(has_room: bool, depth: Callable[[], int], reason: str | None) -> None:
    reasons = await watched(lambda: has_room, depth)
    if reason is None:
        assert reasons == []
    else:
        assert len(reasons) == 1
        assert reasons[0].startswith(reason)


async def test_a_worker_that_pops_is_alive() -> None:
    assert await watched(lambda: True, lambda: 3, pops=True) == []


async def test_an_event_loop_that_does_not_turn_is_a_stall() -> None:
    reasons = await watched(lambda: True, lambda: 0, blocked=True)
    assert len(reasons) == 1
    assert reasons[0].startswith("the stage's event loop has not turned")


async def watched(
    has_room: Callable[[], bool], depth: Callable[[], int], *, pops: bool = False, blocked: bool = False
) -> list[str]:
    """Watch for twice as long as a stall takes; return the reasons that were given."""
    reasons: list[str] = []
    watch = StallWatch(
        STALL_S, asyncio.get_running_loop(), has_room=has_room, queue_depth=depth, on_stall=reasons.append
    )
    watch.start()
    end = time.monotonic() + 2 * STALL_S
    while time.monotonic() < end:
        if pops:
            watch.popped()
        if blocked:
            time.sleep(2 * STALL_S)
        await asyncio.sleep(STALL_S / 20)
    watch.close()
    return reasons
