"""An event loop that does not turn has stalled, whatever the broker does; one that turns has not."""

import asyncio
import time

import pytest

from workers.consumer.stall_watch import StallWatch

STALL_S = 0.6


@pytest.mark.parametrize("blocked", [True, False], ids=["stands still", "turns"])
async def test_an_event_loop_that_does_not_turn_is_a_stall(blocked: bool) -> None:
    stalls: list[tuple[str, str | None]] = []
    watch = StallWatch(STALL_S, asyncio.get_running_loop(), on_stall=lambda *stall: stalls.append(stall))
    watch.start()
    if blocked:
        time.sleep(2 * STALL_S)
    else:
        await asyncio.sleep(2 * STALL_S)
    watch.close()
    assert len(stalls) == blocked
    assert all(reason.startswith("the stage's event loop has not turned for") for reason, _ in stalls)
    task = asyncio.current_task()
    assert task is not None
    assert all(name == task.get_name() for _, name in stalls)


async def test_a_closed_watch_says_nothing() -> None:
    stalls: list[tuple[str, str | None]] = []
    watch = StallWatch(STALL_S, asyncio.get_running_loop(), on_stall=lambda *stall: stalls.append(stall))
    watch.start()
    watch.close()
    time.sleep(2 * STALL_S)
    assert stalls == []
