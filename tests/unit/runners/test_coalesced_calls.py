"""Calls that wait together are sent as one; each caller gets its own answer or error."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from omni_jobs.errors import EngineDead
from workers.runners.ar.coalesced_calls import CoalescedCalls


class Engine:
    """Two ranks; answers once it is told to."""

    def __init__(self) -> None:
        self.sent: list[list[tuple[Any, ...]]] = []
        self.step = asyncio.Event()
        self.asked = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, calls: Sequence[tuple[Any, ...]]) -> list[list[str]]:
        self.sent.append(list(calls))
        self.asked.set()
        await self.step.wait()
        if self.error is not None:
            raise self.error
        return [[f"{rank}:{name}" for (name,) in calls] for rank in range(2)]


async def test_those_that_wait_together_are_one_call() -> None:
    engine = Engine()
    calls = CoalescedCalls(engine.send)
    first = asyncio.create_task(calls("a"))
    await engine.asked.wait()
    later = [asyncio.create_task(calls(name)) for name in ("b", "c", "d")]
    await asyncio.sleep(0)
    later[1].cancel()
    engine.step.set()
    assert await first == ["0:a", "1:a"]
    assert await later[0] == ["0:b", "1:b"]
    assert await later[2] == ["0:d", "1:d"]
    assert engine.sent == [[("a",)], [("b",), ("d",)]]
    assert await calls("e") == ["0:e", "1:e"]


async def test_one_that_is_cancelled_while_it_is_sent_disturbs_no_other() -> None:
    engine = Engine()
    calls = CoalescedCalls(engine.send)
    both = [asyncio.create_task(calls(name)) for name in ("a", "b")]
    await engine.asked.wait()
    both[0].cancel()
    engine.step.set()
    assert await both[1] == ["0:b", "1:b"]
    assert both[0].cancelled()


async def test_an_error_reaches_every_caller_and_the_next_call_is_sent() -> None:
    engine = Engine()
    engine.error = EngineDead()
    engine.step.set()
    calls = CoalescedCalls(engine.send)
    found = await asyncio.gather(calls("a"), calls("b"), return_exceptions=True)
    assert [type(error) for error in found] == [EngineDead, EngineDead]
    engine.error = None
    assert await calls("c") == ["0:c", "1:c"]


async def test_closing_cancels_what_waits() -> None:
    engine = Engine()
    calls = CoalescedCalls(engine.send)
    first = asyncio.create_task(calls("a"))
    await engine.asked.wait()
    second = asyncio.create_task(calls("b"))
    await asyncio.sleep(0)
    calls.close()
    for task in (first, second):
        with pytest.raises(asyncio.CancelledError):
            await task
    calls.close()
