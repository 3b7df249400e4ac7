"""omni_jobs.intake.group_commit: which jobs share a transaction. With a database: tests/integration/api."""

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from omni_jobs.errors import DatabaseUnavailable, IdempotencyKeyReused, OmniJobsError
from omni_jobs.identity import PipelineId
from omni_jobs.intake.group_commit import GroupCommit
from omni_jobs.jobs import NewJob, SubmitResult
from tests.integration.job_steps import new_job

Results = list[SubmitResult | IdempotencyKeyReused]


class Store:
    """Notes the transactions; the first waits until it is let go."""

    def __init__(self, answer: Callable[[NewJob], SubmitResult | IdempotencyKeyReused] | None = None) -> None:
        self.transactions: list[list[str]] = []
        self.began, self.go_on = threading.Event(), threading.Event()
        self._answer = answer or made

    def submit_all(self, jobs: Sequence[NewJob]) -> Results:
        self.transactions.append([job.job_id for job in jobs])
        self.began.set()
        assert self.go_on.wait(30)
        return [self._answer(job) for job in jobs]


def made(job: NewJob) -> SubmitResult:
    return SubmitResult(job.job_id, created=True, queues={job.pipeline.name})


@contextmanager
def committing(store: Store) -> Iterator[tuple[GroupCommit, list[Collection[str]]]]:
    """Yield the commits, and the queues that each transaction rings."""
    rung: list[Collection[str]] = []
    commits = GroupCommit(store.submit_all, rung.append)
    try:
        yield commits, rung
    finally:
        store.go_on.set()
        commits.close()


def only(results: Future[list[SubmitResult | OmniJobsError]]) -> SubmitResult | OmniJobsError:
    [result] = results.result(30)
    return result


def was_created(results: Future[list[SubmitResult | OmniJobsError]]) -> bool:
    result = only(results)
    return isinstance(result, SubmitResult) and result.created


def test_what_comes_meanwhile_shares_the_next_transaction() -> None:
    store = Store()
    jobs = [new_job(pipeline=PipelineId(f"p{n % 3}", "d")) for n in range(11)]
    ids = [job.job_id for job in jobs]
    with committing(store) as (commits, rung):
        first = commits.submit([jobs[0]])
        assert store.began.wait(30)
        rest = [commits.submit([job]) for job in jobs[1:4]]
        group = commits.submit(jobs[4:])
        store.go_on.set()
        results = [only(each) for each in (first, *rest)] + group.result(30)
    assert [result.job_id for result in results if isinstance(result, SubmitResult)] == ids
    assert store.transactions == [ids[:1], ids[1:]]
    assert rung == [{"p0"}, {"p0", "p1", "p2"}], "once for all jobs of a transaction"


def test_a_transaction_ends_once_it_is_large() -> None:
    store = Store()
    with committing(store) as (commits, _):
        commits.submit([new_job()])
        assert store.began.wait(30)
        groups = [commits.submit([new_job()] * size) for size in (200, 100, 1)]
        store.go_on.set()
        assert [len(group.result(30)) for group in groups] == [200, 100, 1]
    assert [len(transaction) for transaction in store.transactions] == [1, 300, 1]


def test_a_key_used_before_is_refused_alone() -> None:
    bad = new_job()
    store = Store(lambda job: IdempotencyKeyReused() if job is bad else made(job))
    store.go_on.set()
    with committing(store) as (commits, rung):
        refused, good = commits.submit([bad]), commits.submit([new_job()])
        assert isinstance(only(refused), IdempotencyKeyReused)
        assert was_created(good)
    assert [queue for queues in rung for queue in queues] == ["echo"]


def test_what_the_database_refuses_of_one_fails_no_other() -> None:
    bad = new_job()

    def answer(job: NewJob) -> SubmitResult:
        if job is bad:
            raise ValueError("not JSON")
        return made(job)

    store = Store(answer)
    with committing(store) as (commits, _):
        first = commits.submit([new_job()])
        assert store.began.wait(30)
        group = commits.submit([new_job(), bad])
        store.go_on.set()
        assert was_created(first)
        good, refused = group.result(30)
        assert isinstance(good, SubmitResult)
        assert type(refused) is OmniJobsError
        assert "JSON" not in refused.message  # a client learns nothing of the inside


def test_a_database_that_is_away_is_everybodys_result_and_it_goes_on() -> None:
    away = threading.Event()
    away.set()

    def answer(job: NewJob) -> SubmitResult:
        if away.is_set():
            raise DatabaseUnavailable
        return made(job)

    store = Store(answer)
    store.go_on.set()
    with committing(store) as (commits, _):
        for results in [commits.submit([new_job()]) for _ in range(3)]:
            assert isinstance(only(results), DatabaseUnavailable)
        away.clear()
        assert was_created(commits.submit([new_job()]))


def test_closing_writes_what_waits() -> None:
    store = Store()
    with committing(store) as (commits, _):
        groups = [commits.submit([new_job()]) for _ in range(5)]
    assert all(was_created(group) for group in groups)


def test_a_bug_after_the_transaction_ends_neither_the_thread_nor_a_wait() -> None:
    store = Store()
    store.go_on.set()
    bugs = [RuntimeError("a bug")]

    def ring(queues: Collection[str]) -> None:
        if bugs:
            raise bugs.pop()

    commits = GroupCommit(store.submit_all, ring)
    with pytest.raises(RuntimeError, match="a bug"):
        commits.submit([new_job()]).result(30)
    assert was_created(commits.submit([new_job()]))
    commits.close()


class Held:
    """What a frame of the database's code holds."""


@pytest.mark.parametrize("where", ["submit", "ring"])
def test_an_error_keeps_nothing_of_the_transaction_that_it_ended(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever holds the error would hold all jobs of the transaction; here nobody collects garbage for it."""
    caplog.set_level(logging.CRITICAL + 1, logger="omni_jobs")  # what is logged here is held by pytest
    seen: list[weakref.ref[Held]] = []

    def failing(*_: object) -> None:
        held = Held()
        seen.append(weakref.ref(held))
        try:
            raise OSError(held)
        except OSError as error:
            raise DatabaseUnavailable from error

    store = Store(failing if where == "submit" else None)
    store.go_on.set()
    commits = GroupCommit(store.submit_all, failing if where == "ring" else len)
    gc.disable()
    try:
        results = commits.submit([new_job()])
        commits.close()
        error = results.exception() or only(results)
        assert isinstance(error, DatabaseUnavailable)
        assert seen[0]() is None
    finally:
        gc.enable()
