"""omni_jobs.intake.backlog: which jobs have room, which are refused, and when it counts.

Time stands still unless a test moves it.
"""

import asyncio
import threading
from collections.abc import Callable
from types import NoneType

import pytest

from omni_jobs.errors import Conflict, DatabaseUnavailable, LimitReached, TooManyRunningJobs
from omni_jobs.intake.backlog import Backlog
from omni_jobs.tenants.tenant_limits import Limits

PATIENCE_S = 30.0


class Queue:
    """The answers of SQL, and a clock."""

    def __init__(self, **waiting: int) -> None:
        self.waiting = {("echo", tenant): count for tenant, count in waiting.items()}
        self.now = 1000.0
        self.takes_s = 0.0
        self.counts = 0
        self.away = False
        self.meanwhile: Callable[[], object] = lambda: None

    def count(self) -> dict[tuple[str, str], int]:
        self.counts += 1
        counted = dict(self.waiting)
        self.meanwhile()
        self.now += self.takes_s
        if self.away:
            raise DatabaseUnavailable
        return counted

    def backlog(self, per_pipeline: int = 1000, per_tenant: int = 1000) -> Backlog:
        return Backlog(self.count, per_pipeline=per_pipeline, per_tenant=per_tenant, clock=lambda: self.now)


async def accepted(backlog: Backlog, tenant: str = "a", pipeline: str = "echo", times: int = 1) -> int:
    """Submit so many jobs one by one; return how many there was room for before the first refusal."""
    for done in range(times):
        await backlog.refresh()
        with backlog.reserve(pipeline, tenant) as reservation:
            if reservation.refusal is not None:
                return done
            reservation.taken = 1
    return times


async def refused(backlog: Backlog, tenant: str = "a") -> LimitReached | None:
    await backlog.refresh()
    with backlog.reserve("echo", tenant) as reservation:
        return reservation.refusal


async def test_what_waits_and_what_came_since_are_both_counted_by_pipeline() -> None:
    backlog = Queue(a=3, b=4).backlog(per_pipeline=10)
    assert await accepted(backlog, times=20) == 3
    assert await accepted(backlog, pipeline="another", times=20) == 10


async def test_each_tenant_has_its_bound() -> None:
    backlog = Queue(a=3).backlog(per_pipeline=12, per_tenant=5)
    assert await accepted(backlog, "a", times=20) == 2
    assert await accepted(backlog, "b", times=20) == 5
    refusal = await refused(backlog, "a")
    assert refusal is not None
    assert refusal.message == "tenant a in pipeline echo has 5 jobs waiting; 5 may wait"
    assert refusal.retry_after_s >= 1


@pytest.mark.parametrize(("wanted", "granted"), [(1, 1), (4, 4), (5, 4), (100, 4)])
async def test_as_many_are_granted_as_have_room(wanted: int, granted: int) -> None:
    backlog = Queue(a=3, b=3).backlog(per_pipeline=10)
    await backlog.refresh()
    with backlog.reserve("echo", "a", wanted) as reservation:
        assert reservation.granted == granted
        assert (reservation.refusal is not None) == (wanted > granted)
        reservation.taken = 1
    assert await accepted(backlog, times=10) == 3  # what was not taken is given back


async def test_room_that_is_not_taken_is_given_back() -> None:
    backlog = Queue().backlog(per_pipeline=1)
    for _ in range(3):
        assert await refused(backlog) is None
    with pytest.raises(Conflict), backlog.reserve("echo", "a"):
        raise Conflict
    with pytest.raises(DatabaseUnavailable), backlog.reserve("echo", "a"):
        raise DatabaseUnavailable  # the job may be there all the same
    assert await accepted(backlog) == 0


async def test_what_is_reserved_counts() -> None:
    backlog = Queue().backlog(per_pipeline=2)
    await backlog.refresh()
    with backlog.reserve("echo", "a"), backlog.reserve("echo", "b"):
        assert await refused(backlog, "c") is not None
    assert await accepted(backlog, times=5) == 2


async def test_it_counts_once_a_second_at_most() -> None:
    queue = Queue()
    backlog = queue.backlog()
    for _ in range(10):
        queue.now += 0.15
        await accepted(backlog, times=100)
        await backlog.close()
    assert queue.counts == 2


async def test_a_slow_count_is_made_less_often() -> None:
    queue = Queue()
    queue.takes_s = 0.5
    backlog = queue.backlog()
    await accepted(backlog)
    queue.now += 49.0
    await accepted(backlog)
    await backlog.close()
    assert queue.counts == 1
    queue.now += 1.0
    await accepted(backlog)
    await backlog.close()
    assert queue.counts == 2


async def test_no_request_waits_for_a_count_while_there_is_one() -> None:
    queue = Queue(a=1)
    backlog = queue.backlog(per_pipeline=5)
    await accepted(backlog)
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE_S)

    queue.meanwhile = wait
    queue.now += 1.5
    await backlog.refresh()
    await asyncio.wait_for(begun.wait(), PATIENCE_S)
    queue.waiting = {("echo", "a"): 0}  # too late for the count that goes on
    assert await accepted(backlog, times=10) == 3  # 1 waiting, 4 submitted here
    go_on.set()
    await backlog.close()
    # 1 was waiting when the count began; of the 3 that came while it went on it may know none.
    assert await accepted(backlog, times=10) == 1


async def test_a_job_that_is_written_after_a_count_began_is_not_forgotten() -> None:
    queue = Queue()
    backlog = queue.backlog(per_pipeline=1)
    await backlog.refresh()
    with backlog.reserve("echo", "a") as reservation:
        queue.now += 1.5
        await backlog.refresh()
        await backlog.close()
        reservation.taken = 1
    assert await accepted(backlog) == 0


async def test_an_old_count_is_not_gone_by() -> None:
    queue = Queue()
    backlog = queue.backlog(per_pipeline=5)
    assert await accepted(backlog, times=5) == 5
    queue.waiting = {("echo", "b"): 5}
    queue.now += 60.0
    assert await accepted(backlog) == 0


async def test_a_failed_count_leaves_the_last_one_until_it_is_old() -> None:
    queue = Queue(a=1)
    backlog = queue.backlog(per_pipeline=100)
    await accepted(backlog)
    queue.away = True
    for _ in range(9):
        queue.now += 1.01
        assert await accepted(backlog) == 1
        await backlog.close()
    assert 5 <= queue.counts <= 10
    queue.now += 60.0
    with pytest.raises(DatabaseUnavailable):
        await accepted(backlog)
    queue.away = False
    assert await accepted(backlog, times=200) == 99


async def test_all_who_wait_for_a_count_share_it_and_its_error() -> None:
    queue = Queue()
    backlog = queue.backlog()
    go_on = threading.Event()
    queue.meanwhile, queue.away = lambda: go_on.wait(PATIENCE_S), True
    waits = [asyncio.create_task(backlog.refresh()) for _ in range(13)]
    await asyncio.sleep(0)
    waits[0].cancel()  # which takes the count from nobody
    go_on.set()
    errors = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), PATIENCE_S)
    assert [type(error) for error in errors] == [asyncio.CancelledError] + [DatabaseUnavailable] * 12
    assert queue.counts == 1
    queue.away = False
    assert await accepted(backlog) == 1


async def test_many_at_once_never_pass_the_bound() -> None:
    queue = Queue(a=10)
    backlog = queue.backlog(per_pipeline=50, per_tenant=45)

    async def submit(number: int) -> int:
        await backlog.refresh()
        with backlog.reserve("echo", "a" if number % 3 else "b") as reservation:
            await asyncio.sleep(0)
            reservation.taken = reservation.granted
        return reservation.taken

    assert sum(await asyncio.gather(*(submit(number) for number in range(400)))) == 40
    assert queue.counts == 1


async def test_a_tenant_may_have_a_bound_of_its_own() -> None:
    backlog = Queue(a=3, b=3).backlog(per_tenant=4)
    await backlog.refresh()
    for queued, granted in ((None, 1), (0, 0), (3, 0), (5, 2), (100, 10)):
        with backlog.reserve("echo", "a", 10, Limits(queued_jobs=queued)) as reservation:
            assert reservation.granted == granted
    assert await accepted(backlog, "b", times=20) == 1


async def test_a_tenant_that_runs_as_many_as_it_may_has_no_room() -> None:
    running = {"a": 2}
    queue = Queue()
    backlog = Backlog(queue.count, per_pipeline=9, per_tenant=9, running=lambda: running, clock=lambda: queue.now)
    await backlog.refresh()
    for tenant, limit, granted in (("a", 2, 0), ("a", 3, 4), ("b", 2, 4), ("b", 0, 0)):
        with backlog.reserve("echo", tenant, 4, Limits(running_jobs=limit)) as reservation:
            assert reservation.granted == granted
            assert isinstance(reservation.refusal, TooManyRunningJobs if not granted else NoneType)
