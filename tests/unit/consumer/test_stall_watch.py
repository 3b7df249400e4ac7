"""An event loop that does not turn has stalled, whatever the broker does; one that turns has not."""

import asyncio
import os
import signal
import subprocess
import sys
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


STOPPED = f"""
import asyncio
import sys
from workers.consumer.stall_watch import StallWatch

async def main():
    loop = asyncio.get_running_loop()
    watch = StallWatch({STALL_S}, loop, on_stall=lambda reason, task: print("stalled", flush=True))
    watch.start()
    print("watches", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    await asyncio.sleep({STALL_S / 2})  # some checks more
    print("turns", flush=True)

asyncio.run(main())
"""


def test_a_process_that_was_stopped_as_a_whole_has_not_stalled() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "watches\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        time.sleep(3 * STALL_S)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate("\n", timeout=60)
        assert out == "turns\n"
    finally:
        process.kill()


async def test_a_closed_watch_says_nothing() -> None:
    stalls: list[tuple[str, str | None]] = []
    watch = StallWatch(STALL_S, asyncio.get_running_loop(), on_stall=lambda *stall: stalls.append(stall))
    watch.start()
    watch.close()
    time.sleep(2 * STALL_S)
    assert stalls == []
