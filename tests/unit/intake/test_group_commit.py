"""The submitter's groups. With a database under it: tests/integration/test_api."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from omni_jobs.errors import Conflict, DatabaseUnavailable
from omni_jobs.intake.group_commit import Submitter
from omni_jobs.jobs import Hint, NewJob, SubmitResult
from tests.integration.job_steps import new_job

Answers = list[SubmitResult | Conflict]


class Store:
    """Notes the groups it is given; the first waits until it is let go."""

    def __init__(self, answer: Callable[[NewJob], SubmitResult | Conflict] | None = None) -> None:
        self.groups: list[list[str]] = []
        self.began, self.go_on = threading.Event(), threading.Event()
        self._answer = answer or made

    def submit_all(self, wishes: Sequence[tuple[NewJob, str | None]]) -> Answers:
        self.groups.append([job.job_id for job, _ in wishes])
        self.began.set()
        assert self.go_on.wait(30)
        return [self._answer(job) for job, _ in wishes]


def made(job: NewJob) -> SubmitResult:
    return SubmitResult(job.job_id, created=True, hints=[Hint(1, 0, job.job_id)])


@contextmanager
def submitter(store: Store) -> Iterator[tuple[Submitter, list[Hint]]]:
    sent: list[Hint] = []
    found = Submitter(store.submit_all, sent.extend)
    found.start()
    try:
        yield found, sent
    finally:
        store.go_on.set()
        found.close()


def test_what_comes_meanwhile_shares_the_next_transaction() -> None:
    store = Store()
    jobs = [new_job() for _ in range(11)]
    with submitter(store) as (found, sent):
        first = found.submit(jobs[0], None)
        assert store.began.wait(30)
        rest = [found.submit(job, None) for job in jobs[1:]]
        store.go_on.set()
        answers = [future.result(30) for future in (first, *rest)]
    assert [answer.job_id for answer in answers] == [job.job_id for job in jobs]
    assert store.groups == [[jobs[0].job_id], [job.job_id for job in jobs[1:]]]
    assert [hint.queue for hint in sent] == [job.job_id for job in jobs]


def test_a_conflict_is_its_own() -> None:
    bad = new_job()
    store = Store(lambda job: Conflict() if job is bad else made(job))
    store.go_on.set()
    with submitter(store) as (found, sent):
        conflict, good = found.submit(bad, "k"), found.submit(new_job(), None)
        with pytest.raises(Conflict):
            conflict.result(30)
        assert good.result(30).created
    assert len(sent) == 1


def test_what_the_database_refuses_of_one_fails_no_other() -> None:
    bad = new_job()

    def answer(job: NewJob) -> SubmitResult:
        if job is bad:
            raise ValueError("not JSON")
        return made(job)

    store = Store(answer)
    with submitter(store) as (found, _):
        first = found.submit(new_job(), None)
        assert store.began.wait(30)
        good, refused = found.submit(new_job(), None), found.submit(bad, None)
        store.go_on.set()
        assert first.result(30).created
        assert good.result(30).created
        with pytest.raises(ValueError, match="not JSON"):
            refused.result(30)


def test_a_database_that_is_away_is_everybodys_answer_and_it_goes_on() -> None:
    away = threading.Event()
    away.set()

    def answer(job: NewJob) -> SubmitResult:
        if away.is_set():
            raise DatabaseUnavailable
        return made(job)

    store = Store(answer)
    store.go_on.set()
    with submitter(store) as (found, _):
        for future in [found.submit(new_job(), None) for _ in range(3)]:
            with pytest.raises(DatabaseUnavailable):
                future.result(30)
        away.clear()
        assert found.submit(new_job(), None).result(30).created


def test_closing_answers_what_waits() -> None:
    store = Store()
    with submitter(store) as (found, _):
        futures = [found.submit(new_job(), None) for _ in range(5)]
    assert all(future.result(0).created for future in futures)


def test_a_bug_after_the_transaction_ends_neither_the_thread_nor_a_wait() -> None:
    store = Store()
    store.go_on.set()
    bugs = [RuntimeError("a bug")]

    def send(hints: Sequence[Hint]) -> None:
        if bugs:
            raise bugs.pop()

    found = Submitter(store.submit_all, send)
    found.start()
    with pytest.raises(RuntimeError, match="a bug"):
        found.submit(new_job(), None).result(30)
    assert found.submit(new_job(), None).result(30).created
    found.close()
