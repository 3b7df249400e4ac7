"""Errors of attempts by kind: counted over time, with the newest of each, and a tenant sees its own."""

import time

import pytest
from sqlalchemy import text

from omni_jobs.errors import InvalidRequest, ModelError, WorkerLost
from omni_jobs.jobs import Jobs
from omni_jobs.jobs.life.fingerprint import fingerprint
from tests.integration.job_steps import claim, fail, failed, new_job, pass_time, register, submit_one

SOON = time.time() + 1e6


def failing(jobs: Jobs, *messages: str, tenant: str = "default") -> list[str]:
    """A job for each message, whose first stage fails so; the jobs' ids."""
    ids = []
    for message in messages:
        ids.append(submit_one(jobs, new_job(tenant=tenant)).job_id)
        (claimed,) = claim(jobs, "w")
        fail(jobs, failed(claimed, "w", ModelError(message)))
    return ids


def test_errors_are_counted_by_kind_the_most_frequent_first(jobs: Jobs) -> None:
    register(jobs, "w")
    ids = failing(jobs, "row 1 of 7 is bad", "no such voice", "row 4 of 9 is bad")
    rows, voice = jobs.error_kinds(0, SOON)
    assert (rows.count, rows.pattern, rows.message) == (2, "row <number> of <number> is bad", "row 4 of 9 is bad")
    assert (rows.code, rows.pipeline, rows.stage, rows.job_id) == ("model_error", "echo", "first", ids[2])
    assert rows.first_at <= rows.last_at
    assert (voice.count, voice.job_id) == (1, ids[1])
    assert rows.fingerprint == fingerprint("model_error", "first", "row 3 of 3 is bad")
    assert [each.fingerprint for each in jobs.error_kinds(0, SOON, at_most=1)] == [rows.fingerprint]
    assert jobs.error_kinds(0, rows.first_at) == []


def test_they_are_counted_over_time(jobs: Jobs) -> None:
    register(jobs, "w")
    failing(jobs, "a 1", "a 2", "a 3")
    at = 1_800_000_000
    with jobs._db.begin() as tx:
        for number, when in enumerate((at + 59.9, at + 60, at + 299), 1):
            of_job = "SELECT id FROM stage_runs WHERE stage = 'first' ORDER BY id LIMIT 1 OFFSET :n"
            tx.execute(
                text(f"UPDATE attempt_errors SET at = :at WHERE stage_run_id = ({of_job})"),
                {"at": when, "n": number - 1},
            )
    kind = fingerprint("model_error", "first", "a 1")
    other = "f" * 32
    counts = jobs.error_counts(at, at + 300, 60, fingerprints=[kind, other])
    assert counts == {kind: [1, 1, 0, 0, 1], other: [0] * 5}
    assert jobs.error_counts(at + 60, at + 290, 60, fingerprints=[kind]) == {kind: [1, 0, 0, 0]}
    assert jobs.error_counts(at, at + 300, 60, fingerprints=[]) == {}


def test_a_tenant_sees_its_own(jobs: Jobs) -> None:
    register(jobs, "w")
    failing(jobs, "a 1", "a 2", tenant="one")
    (id_,) = failing(jobs, "a 3", tenant="two")
    kind = fingerprint("model_error", "first", "a")
    assert [each.count for each in jobs.error_kinds(0, SOON)] == [3]
    [seen] = jobs.error_kinds(0, SOON, tenant="two")
    assert (seen.count, seen.job_id, seen.message) == (1, id_, "a 3")
    assert jobs.error_kinds(0, SOON, tenant="three") == []
    assert kind != seen.fingerprint
    assert jobs.error_counts(0, SOON, SOON, fingerprints=[seen.fingerprint], tenant="one") == {seen.fingerprint: [2]}


def test_a_worker_that_was_cut_off_and_lives_changes_the_kind_with_the_error(jobs: Jobs) -> None:
    register(jobs, "w", lease_s=10)
    submit_one(jobs, new_job())
    claim(jobs, "w")
    pass_time(jobs._db, 20)
    jobs.rescue()
    [lost] = jobs.error_kinds(0, SOON)
    assert lost.code == WorkerLost.code
    jobs.forgive("w")
    [fenced] = jobs.error_kinds(0, SOON)
    assert (fenced.code, fenced.count) == ("fenced", 1)
    assert fenced.fingerprint not in ("", lost.fingerprint)


def test_errors_of_an_older_build_are_left_out(jobs: Jobs) -> None:
    register(jobs, "w")
    failing(jobs, "a 1")
    with jobs._db.begin() as tx:
        tx.execute(text("UPDATE attempt_errors SET fingerprint = NULL, tenant = NULL"))
    assert jobs.error_kinds(0, SOON) == []


def test_what_asks_for_too_much_is_refused(jobs: Jobs) -> None:
    for at_most in (0, 1001):
        with pytest.raises(InvalidRequest):
            jobs.error_kinds(0, SOON, at_most=at_most)
    for since, until, step_s, kind in ((0, 1e9, 1, "a"), (5, 5, 1, "a"), (0, 10, 0, "a"), (0, 10, 1, "a\0")):
        with pytest.raises(InvalidRequest):
            jobs.error_counts(since, until, step_s, fingerprints=[kind])
