"""New jobs and their idempotency keys, on SQLite and on PostgreSQL."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from omni_jobs.database.database import Database
from omni_jobs.errors import DatabaseUnavailable, IdempotencyKeyReused
from omni_jobs.jobs import Jobs, SubmitResult, as_written, new_job_id
from omni_jobs.states import JobState
from tests.integration.job_steps import ANY_SCRIPT, DIAMOND, new_job, register, stages, submit_one


def test_submit_queues_the_first_stages(jobs: Jobs) -> None:
    job = new_job(DIAMOND, metadata={"user": "u"})
    submitted = submit_one(jobs, job)
    assert submitted.created
    assert submitted.queues == {"echo.a"}
    view = jobs.get(job.job_id)
    assert view.id == job.job_id
    assert view.status == JobState.QUEUED
    assert view.metadata == {"user": "u"}
    assert view.seed == 2**63 - 1
    assert view.started_at is None
    assert view.created_at.utcoffset() is not None
    assert stages(jobs, job.job_id) == {"a": "queued", "b": "pending", "c": "pending", "d": "pending"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"graph": DIAMOND, "metadata": {"user": ANY_SCRIPT}, "tenant": "t", "modalities": ["text", "audio"]},
        {"graph": {"second": ["first"]}, "seed": 0, "expires_in_s": 90.25},
        {"expires_at": 4e9 + 0.1},
    ],
    ids=["plain", "diamond", "limited", "dated"],
)
def test_a_new_job_reads_as_it_was_written(database: Database, changes: dict[str, Any]) -> None:
    job = new_job(**changes)
    for stage in job.stages:
        register(Jobs(database), f"w-{stage.name}", stage.name)
    submitted = submit_one(Jobs(database), job)
    assert submitted.created_at is not None
    found = Jobs(database).get(job.job_id)
    assert found.waiting is not None
    assert as_written(job, submitted.created_at) == found.model_copy(update={"waiting": None})


def test_a_job_that_may_have_been_there_has_no_time_of_its_own(database: Database) -> None:
    jobs, job = Jobs(database), new_job()
    first = submit_one(jobs, job)
    assert submit_one(jobs, job) == replace(first, created_at=None, job=None)


def test_inputs_outside_the_job_are_not_waited_for(jobs: Jobs) -> None:
    job = new_job({"second": ["first"]})
    assert submit_one(jobs, job).queues == {"echo.second"}


def test_ids_sort_by_time() -> None:
    ids = [new_job_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert ids[0] < ids[-1]
    assert all(len(job_id) == 36 and job_id[16] == "7" for job_id in ids)


def test_an_idempotency_key_names_one_job(jobs: Jobs) -> None:
    first = submit_one(jobs, new_job(idempotency_key="k"))
    again = submit_one(jobs, new_job(idempotency_key="k"))
    assert first.created
    assert (again.job_id, again.created, list(again.queues)) == (first.job_id, False, [])
    with pytest.raises(IdempotencyKeyReused) as caught:
        submit_one(jobs, new_job(request_digest="other", idempotency_key="k"))
    assert caught.value.field == "Idempotency-Key"
    assert len(jobs.list().jobs) == 1


def test_an_idempotency_key_used_at_once_names_one_job(jobs: Jobs) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit_one(jobs, new_job(idempotency_key="k")), range(24)))
    assert len({answer.job_id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1


# Not on SQLite, where nobody else writes while a submit is open.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_job_that_is_deleted_while_its_key_is_used_again(jobs: Jobs, database: Database) -> None:
    first = submit_one(jobs, new_job(idempotency_key="k"))
    deleted = threading.Event()

    @event.listens_for(database._engine, "before_cursor_execute")
    def delete(_: Connection, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT jobs.id, jobs.request_digest") and not deleted.is_set():
            deleted.set()
            with database.begin() as other:
                for table in ("stage_runs", "jobs"):
                    column = "id" if table == "jobs" else "job_id"
                    other.execute(text(f"DELETE FROM {table} WHERE {column} = :id"), {"id": first.job_id})

    refused, neighbour = jobs.submit_all([new_job(idempotency_key="k"), new_job()])
    assert deleted.is_set()
    assert isinstance(refused, DatabaseUnavailable)
    assert isinstance(neighbour, SubmitResult)
    assert neighbour.created
    assert submit_one(jobs, new_job(idempotency_key="k")).created


def test_an_idempotency_key_is_its_tenants_own(jobs: Jobs) -> None:
    first = submit_one(jobs, new_job(tenant="a", idempotency_key="k"))
    asked = {("a", "k"), ("b", "k"), ("a", "other")}
    assert jobs.known_keys(asked) == {("a", "k")}
    assert jobs.known_submits(asked) == {("a", "k"): (first.job_id, new_job().request_digest)}
    wishes = [
        new_job(tenant="b", request_digest="other", idempotency_key="k"),
        new_job(tenant="a", idempotency_key="k"),
        new_job(tenant="a", request_digest="other", idempotency_key="k"),
        new_job(tenant="c", idempotency_key="k"),
    ]
    other, again, reused, third = jobs.submit_all(wishes)
    assert isinstance(reused, IdempotencyKeyReused)
    assert [answer.created for answer in (other, again, third)] == [True, False, True]  # type: ignore[union-attr]
    assert again.job_id == first.job_id  # type: ignore[union-attr]
    assert len({first.job_id, other.job_id, third.job_id}) == 3  # type: ignore[union-attr]
    assert jobs.known_keys({("a", "k"), ("b", "k")}) == {("a", "k"), ("b", "k")}
    assert jobs.known_submits({("b", "k")}) == {("b", "k"): (other.job_id, "other")}  # type: ignore[union-attr]


def test_many_at_once_are_answered_one_by_one(jobs: Jobs) -> None:
    known = submit_one(jobs, new_job(idempotency_key="known"))
    wishes = [
        new_job(),
        new_job(idempotency_key="known"),
        new_job(request_digest="other", idempotency_key="known"),
        new_job({"only": []}, idempotency_key="twice"),
        new_job({"only": []}, idempotency_key="twice"),
        new_job(DIAMOND, idempotency_key="new"),
    ]
    first, again, reused, one, other, diamond = jobs.submit_all(wishes)
    assert isinstance(reused, IdempotencyKeyReused)
    assert reused.field == "Idempotency-Key"
    assert [answer.created for answer in (first, again, diamond)] == [True, False, True]  # type: ignore[union-attr]
    assert isinstance(one, SubmitResult)
    assert isinstance(other, SubmitResult)
    assert (again.job_id, one.job_id) == (known.job_id, other.job_id)  # type: ignore[union-attr]
    assert [one.created, other.created].count(True) == 1
    assert len(jobs.list().jobs) == 4
    for answer, queue in ((first, "echo.first"), (diamond, "echo.a")):
        assert isinstance(answer, SubmitResult)
        assert answer.queues == {queue}
    assert [queue for answer in (one, other) for queue in answer.queues] == ["echo.only"]
    assert stages(jobs, diamond.job_id)["a"] == "queued"  # type: ignore[union-attr]
    assert jobs.submit_all([]) == []


def test_batches_that_share_keys_make_each_job_once(jobs: Jobs) -> None:
    keys = [f"k{n}" for n in range(20)]

    def submit(seed: int) -> list[str]:
        mine = random.Random(seed).sample(keys, len(keys))
        answers = jobs.submit_all([new_job(idempotency_key=key) for key in mine])
        return [answer.job_id for answer in answers if isinstance(answer, SubmitResult) and answer.created]

    with ThreadPoolExecutor(4) as pool:
        made = [job_id for batch in pool.map(submit, range(12)) for job_id in batch]
    assert len(made) == len(set(made)) == len(keys)
