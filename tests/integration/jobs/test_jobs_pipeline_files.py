"""A worker runs jobs of its own pipeline file alone, and a job that no live worker may take says so."""

from typing import Any

import pytest
from sqlalchemy import Connection, event

from omni_jobs.database.database import Database
from omni_jobs.errors import ModelError, OutOfMemory
from omni_jobs.identity import PipelineId
from omni_jobs.jobs import Claim, Jobs, as_written
from omni_jobs.states import JobState, StageRunState
from tests.integration.job_steps import (
    CHAIN,
    DIAMOND,
    claim,
    complete_all,
    done,
    fail,
    failed,
    new_job,
    pass_time,
    register,
)


def submit(
    jobs: Jobs, digest: str, count: int = 1, graph: dict[str, list[str]] = CHAIN, version: str = "1"
) -> list[str]:
    """Submit so many jobs, and return their ids."""
    new = [new_job(graph, pipeline=PipelineId("echo", digest), pipeline_version=version) for _ in range(count)]
    jobs.submit_all(new)
    return [job.job_id for job in new]


def ids(claims: list[Claim]) -> list[str]:
    return [each.job_id for each in claims]


@pytest.mark.parametrize("count", [3, 20])
def test_a_worker_claims_jobs_of_its_file_alone(jobs_or_forgetful: Jobs, count: int) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "old", digest="d1", slots=100)
    register(jobs, "new", digest="d2", slots=100)
    ours, theirs = submit(jobs, "d1", count), submit(jobs, "d2", count)
    assert ids(claim(jobs, "new")) == theirs
    assert {jobs.get(job_id).status for job_id in ours} == {"queued"}
    assert ids(claim(jobs, "old")) == ours


def test_what_comes_in_an_ends_place_is_of_the_workers_file(jobs: Jobs) -> None:
    register(jobs, "w", digest="d1")
    submit(jobs, "d1")
    [first] = claim(jobs, "w")
    submit(jobs, "d2", 3)
    ours = submit(jobs, "d1", 3)
    claims = jobs.claim("w", 100, reports=[done(first, "w")])
    assert [outcome.won for outcome in claims.outcomes] == [True]
    assert [each.job_id for each in claims.claims] == ours


def test_a_job_in_flight_goes_on_with_its_own_file(jobs: Jobs, database: Database) -> None:
    """Between its stages the file changes; no stage of it runs with the new one, nor a retried attempt."""
    for stage in "abc":
        register(jobs, f"old-{stage}", stage, digest="d1", lease_s=1000)
        register(jobs, f"new-{stage}", stage, digest="d2", lease_s=1000)
    submit(jobs, "d1", graph=DIAMOND)
    [a] = claim(jobs, "old-a")
    fail(jobs, failed(a, "old-a", OutOfMemory()))
    pass_time(database, 100)
    assert claim(jobs, "new-a") == []
    [a] = claim(jobs, "old-a")
    assert a.attempt == 2
    jobs.report([done(a, "old-a")])
    for stage in "bc":
        assert claim(jobs, f"new-{stage}") == []
        assert len(claim(jobs, f"old-{stage}")) == 1


def test_retried_by_its_user_a_job_keeps_its_file(jobs: Jobs) -> None:
    for worker, digest in (("old", "d1"), ("new", "d2")):
        register(jobs, worker, digest=digest)
    submit(jobs, "d1")
    [a] = claim(jobs, "old")
    fail(jobs, failed(a, "old", ModelError()))
    jobs.retry(a.job_id)
    assert claim(jobs, "new") == []
    assert ids(claim(jobs, "old")) == [a.job_id]


# no_worker


def reason(jobs: Jobs, job_id: str) -> str | None:
    waiting = jobs.get(job_id).waiting
    return None if waiting is None else waiting.reason


def test_a_job_says_that_no_worker_of_its_stage_lives(jobs: Jobs, database: Database) -> None:
    submit(jobs, "d1", version="7")
    [job] = jobs.list().jobs
    assert job == jobs.get(job.id)
    assert job.waiting is not None
    assert job.waiting.model_dump() == {
        "reason": "no_worker",
        "stage": "first",
        "pipeline_version": "7",
        "pipeline_digest": "d1",
        "message": "no worker of stage first serves",
        "position": None,
        "position_is_exact": True,
        "due_at": None,
        "estimate": None,
    }
    assert [stage.reason for stage in job.stages] == ["no_worker", None]
    register(jobs, "w1", digest="d1")
    assert reason(jobs, job.id) == "turn"
    assert jobs.get(job.id).stages[0].reason is None
    complete_all(jobs, "w1")
    waiting = jobs.get(job.id).waiting  # at its second stage
    assert waiting is not None
    assert (waiting.reason, waiting.stage) == ("no_worker", "second")
    register(jobs, "w2", "second", digest="d1", lease_s=5)
    assert reason(jobs, job.id) == "turn"
    pass_time(database, 6)  # its lease runs out
    assert jobs.get(job.id).waiting == waiting
    jobs.cancel(job.id)
    assert jobs.get(job.id).waiting is None


def test_a_worker_of_another_file_is_none(jobs: Jobs) -> None:
    register(jobs, "w", digest="d2", version="2")
    register(jobs, "x", digest="d3", version="1")
    submit(jobs, "d1")
    [job] = jobs.list().jobs
    assert job.waiting is not None
    assert job.waiting.message == (
        "no worker of stage first has the pipeline file that the job was submitted with, version 1 (digest d1); "
        "those that serve have another, version 1 (digest d3), 2 (digest d2)"
    )
    assert {(worker.id, worker.pipeline_version, worker.pipeline_digest) for worker in jobs.workers()} == {
        ("w", "2", "d2"),
        ("x", "1", "d3"),
    }


def test_a_job_that_runs_waits_for_nobody(jobs: Jobs) -> None:
    register(jobs, "w", digest="d1", lease_s=60)
    submit(jobs, "d1")
    [claimed] = claim(jobs, "w")
    jobs.retire_worker("elsewhere")
    assert jobs.get(claimed.job_id).waiting is None


def test_the_answer_to_a_submit_looks_for_no_worker() -> None:
    assert as_written(new_job(), 1.0).waiting is None


def test_a_list_looks_for_workers_once(jobs: Jobs, database: Database) -> None:
    submit(jobs, "d1", 20)
    seen: list[str] = []

    @event.listens_for(database._backend.reading, "before_cursor_execute")
    def note(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if "FROM workers" in statement:
            seen.append(statement)

    assert sum(job.waiting is not None for job in jobs.list(limit=100).jobs) == 20
    assert len(seen) == 1
    for job in jobs.list(limit=100).jobs:
        jobs.cancel(job.id)
    seen.clear()
    assert {job.status for job in jobs.list(limit=100).jobs} == {JobState.CANCELLED}
    assert seen == []


# finish_reason, warnings

CUT = {"code": "cut_short", "message": "the first stopped at its max_tokens of 3: the text is probably cut"}


def test_why_a_stage_ended_and_its_warnings_are_read_with_the_job(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submit(jobs, "d")
    register(jobs, "w")
    [claimed] = claim(jobs, "w")
    jobs.report([done(claimed, "w", finish_reason="length", warnings=[CUT])])
    job = jobs.get(claimed.job_id)
    assert [(stage.status, stage.finish_reason) for stage in job.stages] == [
        (StageRunState.SUCCEEDED, "length"),
        (StageRunState.QUEUED, None),
    ]
    assert [warning.model_dump() for warning in job.warnings] == [{**CUT, "stage": "first"}]
    assert jobs.list().jobs == [job]


def test_a_retry_forgets_how_the_stage_had_ended(jobs: Jobs) -> None:
    register(jobs, "w")
    submit(jobs, "d", graph={"first": []})
    [claimed] = claim(jobs, "w")
    jobs.report([done(claimed, "w", finish_reason="length", warnings=[CUT])])
    jobs.retry(claimed.job_id, from_stage="first")
    job = jobs.get(claimed.job_id)
    assert (job.stages[0].finish_reason, job.warnings) == (None, [])


def test_many_ends_keep_each_their_own_reason(jobs: Jobs) -> None:
    register(jobs, "w", slots=100)
    submit(jobs, "d", 40, graph={"first": []})
    claims = claim(jobs, "w")
    reasons = {each.job_id: reason for each, reason in zip(claims, 20 * ["length", None], strict=True)}
    jobs.report([done(each, "w", finish_reason=reasons[each.job_id]) for each in claims])
    assert {job.id: job.stages[0].finish_reason for job in jobs.list(limit=100).jobs} == reasons
