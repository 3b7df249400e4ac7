"""omni_jobs.intake.backlog: what is let in, what is refused, and when it counts.

Time stands still unless a test moves it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from omni_jobs.errors import Conflict, DatabaseUnavailable, TooManyJobs
from omni_jobs.intake.backlog import Backlog

PATIENCE_S = 30.0


class Queue:
    """What SQL would say, and a clock."""

    def __init__(self, **waiting: int) -> None:
        self.waiting = {("echo", tenant): count for tenant, count in waiting.items()}
        self.now = 1000.0
        self.takes_s = 0.0
        self.counts = 0
        self.away = False
        self.meanwhile: Callable[[], object] = lambda: None

    def count(self) -> dict[tuple[str, str], int]:
        self.counts += 1
        found = dict(self.waiting)
        self.meanwhile()
        self.now += self.takes_s
        if self.away:
            raise DatabaseUnavailable
        return found

    def backlog(self, per_pipeline: int = 1000, per_tenant: int = 1000) -> Backlog:
        return Backlog(self.count, per_pipeline=per_pipeline, per_tenant=per_tenant, clock=lambda: self.now)


def accepted(backlog: Backlog, tenant: str = "a", pipeline: str = "echo", times: int = 1) -> int:
    """How many of so many submits in a row are let in."""
    for done in range(times):
        backlog.refresh()
        try:
            with backlog.place(pipeline, tenant) as place:
                place.taken = True
        except TooManyJobs:
            return done
    return times


def test_what_waits_and_what_came_since_are_both_counted_by_pipeline() -> None:
    backlog = Queue(a=3, b=4).backlog(per_pipeline=10)
    assert accepted(backlog, times=20) == 3
    assert accepted(backlog, pipeline="another", times=20) == 10


def test_each_tenant_has_its_bound() -> None:
    backlog = Queue(a=3).backlog(per_pipeline=12, per_tenant=5)
    assert accepted(backlog, "a", times=20) == 2
    assert accepted(backlog, "b", times=20) == 5
    with pytest.raises(TooManyJobs, match=r"tenant a in pipeline echo has 5 jobs waiting; 5 may wait"):
        accepted_or_raise(backlog, "a")


def accepted_or_raise(backlog: Backlog, tenant: str) -> None:
    backlog.refresh()
    with backlog.place("echo", tenant):
        pass


def test_a_place_that_is_not_taken_is_free_again() -> None:
    backlog = Queue().backlog(per_pipeline=1)
    for _ in range(3):
        accepted_or_raise(backlog, "a")
    with pytest.raises(Conflict), backlog.place("echo", "a"):
        raise Conflict
    with pytest.raises(DatabaseUnavailable), backlog.place("echo", "a"):
        raise DatabaseUnavailable  # the job may be there all the same
    assert accepted(backlog) == 0


def test_places_given_out_count() -> None:
    backlog = Queue().backlog(per_pipeline=2)
    backlog.refresh()
    with backlog.place("echo", "a"), backlog.place("echo", "b"), pytest.raises(TooManyJobs):
        accepted_or_raise(backlog, "c")
    assert accepted(backlog, times=5) == 2


def test_it_counts_once_a_second_at_most() -> None:
    queue = Queue()
    backlog = queue.backlog()
    for _ in range(10):
        queue.now += 0.15
        accepted(backlog, times=100)
        backlog.close()
    assert queue.counts == 2


def test_a_slow_count_is_made_less_often() -> None:
    queue = Queue()
    queue.takes_s = 0.5
    backlog = queue.backlog()
    accepted(backlog)
    queue.now += 49.0
    accepted(backlog)
    backlog.close()
    assert queue.counts == 1
    queue.now += 1.0
    accepted(backlog)
    backlog.close()
    assert queue.counts == 2


def test_no_request_waits_for_a_count_while_there_is_one() -> None:
    queue = Queue(a=1)
    backlog = queue.backlog(per_pipeline=5)
    accepted(backlog)
    going_on, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        going_on.set()
        assert go_on.wait(PATIENCE_S)

    queue.meanwhile = wait
    queue.now += 1.5
    assert accepted(backlog) == 1
    assert going_on.wait(PATIENCE_S)
    queue.waiting = {("echo", "a"): 0}  # too late for the count that goes on
    assert accepted(backlog, times=10) == 2  # 1 waiting, 4 submitted here
    go_on.set()
    backlog.close()
    # 1 was waiting when the count began; of the 3 that came while it went on it may know none.
    assert accepted(backlog, times=10) == 1


def test_an_old_count_is_not_gone_by() -> None:
    queue = Queue()
    backlog = queue.backlog(per_pipeline=5)
    assert accepted(backlog, times=5) == 5
    queue.waiting = {("echo", "b"): 5}
    queue.now += 60.0
    assert accepted(backlog) == 0


def test_a_failed_count_leaves_the_last_one_until_it_is_old() -> None:
    queue = Queue(a=1)
    backlog = queue.backlog(per_pipeline=100)
    accepted(backlog)
    queue.away = True
    for _ in range(9):
        queue.now += 1.01
        assert accepted(backlog) == 1
        backlog.close()
    assert 5 <= queue.counts <= 10
    queue.now += 60.0
    with pytest.raises(DatabaseUnavailable):
        accepted(backlog)
    queue.away = False
    assert accepted(backlog, times=200) == 99


def test_all_who_wait_for_a_count_share_it_and_its_error() -> None:
    queue = Queue()
    backlog = queue.backlog()
    going_on, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        going_on.set()
        assert go_on.wait(PATIENCE_S)

    queue.meanwhile, queue.away = wait, True
    counts = [backlog.keep_fresh()]
    assert going_on.wait(PATIENCE_S)
    counts += [backlog.keep_fresh() for _ in range(12)]
    go_on.set()
    for count in counts:
        assert count is not None
        with pytest.raises(DatabaseUnavailable):
            count.result(PATIENCE_S)
    assert queue.counts == 1
    queue.away = False
    assert accepted(backlog) == 1


def test_a_place_never_waits_for_a_count() -> None:
    """Whoever must not wait asks for places: those of the event loop, whose count was fresh a moment before."""
    queue = Queue(a=1)
    backlog = queue.backlog(per_pipeline=3)
    with pytest.raises(DatabaseUnavailable, match="not been counted"), backlog.place("echo", "a"):
        pass
    backlog.refresh()
    queue.now += 3600.0
    with backlog.place("echo", "a"):
        pass
    with pytest.raises(TooManyJobs), backlog.place("echo", "a", 3):
        pass
    assert queue.counts == 1


def test_retry_after_follows_the_rate_at_which_jobs_leave() -> None:
    queue = Queue(a=1000)
    backlog = queue.backlog(per_pipeline=400)

    def retry_after() -> int:
        with pytest.raises(TooManyJobs) as caught:
            accepted_or_raise(backlog, "a")
        backlog.close()  # whatever count that began
        return caught.value.retry_after_s

    assert retry_after() == 10  # nothing is known yet
    for left in (900, 800, 700):
        queue.waiting = {("echo", "a"): left}
        queue.now += 2.0
        retry_after()
    assert retry_after() == 7  # 301 too many, 50 a second
    for _ in range(3):
        queue.now += 2.0
        retry_after()
    assert retry_after() > 30
    for _ in range(10):
        queue.now += 2.0
        retry_after()
    assert retry_after() == 60
    queue.waiting = {("echo", "a"): 401}
    queue.now += 2.0
    retry_after()
    assert retry_after() == 1


def test_many_at_once_never_pass_the_bound() -> None:
    queue = Queue(a=10)
    backlog = queue.backlog(per_pipeline=50, per_tenant=45)

    def submit(number: int) -> int:
        return accepted(backlog, "a" if number % 3 else "b")

    with ThreadPoolExecutor(32) as pool:
        let_in = sum(pool.map(submit, range(400)))
    assert let_in == 40
    assert queue.counts == 1
