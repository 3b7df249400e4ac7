"""Waiting for a server: one look at it for all who wait, and none for nobody."""

import asyncio

import pytest

from workers.runners.remote.patience import Recovery


class Looks:
    """A server that is back once somebody says so."""

    def __init__(self) -> None:
        self.back = False
        self.count = 0
        self.first = asyncio.Event()

    async def __call__(self) -> bool:
        self.count += 1
        self.first.set()
        await asyncio.sleep(0)
        return self.back


async def test_all_wait_for_one_look() -> None:
    looks = Looks()
    recovery = Recovery(looks)
    waits = [asyncio.create_task(recovery.wait()) for _ in range(100)]
    await looks.first.wait()
    looks.back = True
    await asyncio.gather(*waits)
    assert looks.count <= 2
    await recovery.wait()  # and the next time again
    assert looks.count <= 3


async def test_nobody_looks_for_those_who_have_gone() -> None:
    looks = Looks()
    recovery = Recovery(looks)
    waits = [asyncio.create_task(recovery.wait()) for _ in range(2)]
    await looks.first.wait()
    tasks = len(asyncio.all_tasks())
    for wait in waits:
        wait.cancel()
    await asyncio.wait(waits)
    while len(asyncio.all_tasks()) > tasks - 3:
        await asyncio.sleep(0)
    assert all(wait.cancelled() for wait in waits)


async def test_one_who_goes_leaves_the_others_waiting() -> None:
    looks = Looks()
    recovery = Recovery(looks)
    stays, goes = (asyncio.create_task(recovery.wait()) for _ in range(2))
    await looks.first.wait()
    goes.cancel()
    await asyncio.wait({goes})
    looks.back = True
    await stays


async def test_an_error_ends_the_wait() -> None:
    async def broken() -> bool:
        raise ValueError("closed")

    recovery = Recovery(broken)
    for _ in range(2):
        with pytest.raises(ValueError, match="closed"):
            await recovery.wait()
