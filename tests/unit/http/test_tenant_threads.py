"""However long one tenant's functions take, another tenant's run."""

import asyncio
import gc
import threading

import pytest

from omni_jobs.errors import ServerBusy
from omni_jobs.http.tenant_threads import TenantThreads

PATIENCE_S = 30.0


async def test_one_tenant_leaves_threads_to_others() -> None:
    threads = TenantThreads(3, 2)
    release = threading.Event()
    slow = [asyncio.create_task(threads.run("a", lambda: release.wait(PATIENCE_S))) for _ in range(10)]
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(threads.run("b", lambda: "at once"), PATIENCE_S / 2) == "at once"
        assert not any(task.done() for task in slow)
    finally:
        release.set()
    assert all(await asyncio.gather(*slow))


async def test_no_more_run_at_once_than_may() -> None:
    threads = TenantThreads(3, 2)
    counted = threading.Lock()
    running: dict[str, int] = {"a": 0, "b": 0}
    most: dict[str, int] = {"a": 0, "b": 0, "both": 0}

    def run(tenant: str) -> None:
        with counted:
            running[tenant] += 1
            most[tenant] = max(most[tenant], running[tenant])
            most["both"] = max(most["both"], sum(running.values()))
        threading.Event().wait(0.002)
        with counted:
            running[tenant] -= 1

    await asyncio.gather(*(threads.run(tenant, lambda t=tenant: run(t)) for tenant in ("a", "b") for _ in range(30)))  # type: ignore[misc]
    assert most["a"] <= 2
    assert most["b"] <= 2
    assert most["both"] <= 3


async def test_no_more_of_a_tenant_wait_than_may() -> None:
    """Each that waits keeps a connection. Who sees all tenants, and an answer that has begun, wait all the same."""
    threads = TenantThreads(3, 1, 2)
    release = threading.Event()
    wait = [asyncio.create_task(threads.run(each, lambda: release.wait(PATIENCE_S))) for each in ("a", None) * 3]
    await asyncio.sleep(0)
    try:
        with pytest.raises(ServerBusy, match="2 requests of tenant a"):
            await threads.run("a", lambda: None)
        rest = [threads.run("a", lambda: True, goes_on=True), threads.run(None, lambda: True)]
        wait += [asyncio.create_task(each) for each in rest]
        assert await asyncio.wait_for(threads.run("b", lambda: "at once"), PATIENCE_S / 2) == "at once"
    finally:
        release.set()
    assert all(await asyncio.gather(*wait))
    assert await threads.run("a", lambda: "again") == "again"


async def test_tenants_who_run_nothing_cost_nothing() -> None:
    threads = TenantThreads(3, 2)
    for number in range(100):
        await threads.run(f"t{number}", lambda: None)
    gc.collect()
    assert len(threads._of_tenants) <= 1
