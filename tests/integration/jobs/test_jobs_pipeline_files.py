"""A worker runs jobs of its own pipeline file alone, and a job that no live worker may take says so."""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from omni_jobs.database.database import Database
from omni_jobs.errors import ModelError, OutOfMemory
from omni_jobs.jobs import Claim, Hint, Jobs, as_written
from omni_jobs.jobs.republish import Positions, republish
from omni_jobs.states import JobState, StageRunState
from tests.integration.job_steps import (
    CHAIN,
    DIAMOND,
    claim,
    complete_all,
    done,
    failed,
    new_job,
    pass_time,
    register,
)

FEW, MANY = 3, 20


def submit(
    jobs: Jobs, digest: str, count: int = 1, graph: dict[str, list[str]] = CHAIN, version: str = "1"
) -> list[Hint]:
    new = [new_job(graph, pipeline_digest=digest, pipeline_version=version) for _ in range(count)]
    return [hint for job in new for hint in jobs.submit(job).hints]


def ids(claims: list[Claim]) -> list[int]:
    return [each.stage_run_id for each in claims]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_worker_claims_jobs_of_its_file_alone(jobs_or_forgetful: Jobs, count: int) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "old", digest="d1", slots=100)
    register(jobs, "new", digest="d2", slots=100)
    ours, theirs = submit(jobs, "d1", count), submit(jobs, "d2", count)
    mixed = [hint for pair in zip(ours, theirs, strict=True) for hint in pair]
    assert ids(claim(jobs, "new", mixed)) == [hint.stage_run_id for hint in theirs]
    assert claim(jobs, "new", ours) == []
    assert {jobs.get(job.id).status for job in jobs.list(limit=100).jobs if job.status != "in_progress"} == {"queued"}
    assert ids(claim(jobs, "old", mixed)) == [hint.stage_run_id for hint in ours]


@pytest.mark.parametrize("count", [FEW, MANY])
def test_what_comes_in_an_ends_place_is_of_the_workers_file(jobs: Jobs, count: int) -> None:
    register(jobs, "w", digest="d1", slots=100)
    [first] = claim(jobs, "w", submit(jobs, "d1"))
    ours, theirs = submit(jobs, "d1", count), submit(jobs, "d2", count)
    wanted = [(hint.stage_run_id, hint.attempt) for hint in (*theirs, *ours)]
    outcomes, claims = jobs.complete_and_claim([done(first, "w")], "w", wanted)
    assert [outcome.won for outcome in outcomes] == [True]
    assert ids(claims) == [hint.stage_run_id for hint in ours]


def test_a_job_in_flight_goes_on_with_its_own_file(jobs: Jobs, database: Database) -> None:
    """Between its stages the file changes; no stage of it runs with the new one, nor a retried attempt."""
    for worker, digest in (("old", "d1"), ("new", "d2")):
        register(jobs, worker, digest=digest)
    hints = submit(jobs, "d1", graph=DIAMOND)
    [a] = claim(jobs, "old", hints)
    jobs.fail(failed(a, "old", OutOfMemory()))
    hints = [hint._replace(attempt=1) for hint in hints]
    assert claim(jobs, "new", hints) == []
    with database.begin() as tx:
        tx.execute(text("UPDATE stage_runs SET due = 0 WHERE due IS NOT NULL"))
    assert claim(jobs, "new", hints) == []
    [a] = claim(jobs, "old", hints)
    assert a.attempt == 2
    following = list(jobs.complete([done(a, "old")])[0].hints)
    assert claim(jobs, "new", following) == []
    assert sorted(each.stage for each in claim(jobs, "old", following)) == ["b", "c"]


def test_retried_by_its_user_a_job_keeps_its_file(jobs: Jobs) -> None:
    for worker, digest in (("old", "d1"), ("new", "d2")):
        register(jobs, worker, digest=digest)
    [a] = claim(jobs, "old", submit(jobs, "d1"))
    jobs.fail(failed(a, "old", ModelError()))
    hints = list(jobs.retry(a.job_id))
    assert claim(jobs, "new", hints) == []
    assert ids(claim(jobs, "old", hints)) == [a.stage_run_id]


def test_a_job_whose_file_is_unknown_is_anybodys(jobs: Jobs) -> None:
    register(jobs, "w", digest="d2")
    hints = submit(jobs, "")
    job = jobs.list().jobs[0]
    assert job.waiting is None
    assert ids(claim(jobs, "w", hints)) == [hints[0].stage_run_id]


# what the rescuer announces


def test_hints_are_repeated_where_somebody_may_follow_them(jobs: Jobs, database: Database) -> None:
    register(jobs, "new", digest="d2", slots=4, lease_s=10_000)
    theirs, ours, unknown = submit(jobs, "d1", 2), submit(jobs, "d2", 2), submit(jobs, "", 2)
    pass_time(database, 4)
    assert jobs.rescue().hints == [*ours, *unknown]
    register(jobs, "old", digest="d1", slots=4, lease_s=10_000)
    pass_time(database, 4)
    assert jobs.rescue().hints == [*theirs, *ours, *unknown]


def test_jobs_nobody_may_take_are_not_announced_before_those_somebody_may(database: Database) -> None:
    jobs = Jobs(database, republish_at_most=5)
    register(jobs, "w", digest="d2", slots=100, lease_s=10_000)
    submit(jobs, "d1", 30)
    ours = submit(jobs, "d2", 5)
    pass_time(database, 4)
    assert jobs.rescue().hints == ours
    assert jobs.rescue().hints == []


def test_free_slots_of_one_file_announce_no_jobs_of_another(jobs: Jobs, database: Database) -> None:
    register(jobs, "busy", digest="d1", slots=1, lease_s=10_000)
    register(jobs, "idle", digest="d2", slots=50, lease_s=10_000)
    hints = submit(jobs, "d1", 3)
    assert len(claim(jobs, "busy", hints[:1])) == 1
    pass_time(database, 4)
    assert jobs.rescue().hints == []


def test_rounds_look_at_a_bounded_number_of_rows_and_reach_them_all(database: Database) -> None:
    """Nobody idle may take the front of the queue; it holds up neither the round nor what stands behind it."""
    jobs = Jobs(database)
    register(jobs, "idle", digest="d2", slots=100, lease_s=10_000)
    theirs = submit(jobs, "d1", 25)
    ours = submit(jobs, "d2", 12)
    submit(jobs, "d1", 5)
    pass_time(database, 4)
    with database.begin() as tx:
        tx.execute(text("UPDATE stage_runs SET announce_at = 1 WHERE state = 'queued'"))  # ids decide
    positions: Positions = {}

    def round_() -> list[Hint]:
        return database.run(partial(republish, at_most=4, announce_after_s=3, positions=positions, read_at_most=10))

    assert [round_() for _ in range(7)] == [[], [], ours[:4], ours[4:8], ours[8:], [], []]
    assert positions == {}, "from the front again"
    register(jobs, "theirs", digest="d1", slots=100, lease_s=10_000)
    assert round_() == theirs[:4]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_round_reads_what_waits_in_order_and_all_else_by_its_id(jobs: Jobs, database: Database) -> None:
    plans: list[str] = []

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if "announce_at <= " in statement and not many:
            rows = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[-1] for row in rows)

    register(jobs, "w", digest="d1", slots=100)
    submit(jobs, "d1", 20)
    pass_time(database, 4)
    plans.clear()
    assert len(jobs.rescue().hints) == 20
    in_order = "SEARCH stage_runs USING INDEX ix_stage_runs_queued (pipeline=? AND stage=? AND announce_at<?)"
    by_id = "SEARCH stage_runs USING INTEGER PRIMARY KEY (rowid=?)"
    assert plans[:3] == ["CO-ROUTINE anon_1", in_order, "SCAN anon_1"]
    assert {plan for plan in plans if "stage_runs" in plan} == {in_order, by_id}
    assert plans.count(in_order) == 2, "to find the hints, and to find where this round stopped"
    assert not [plan for plan in plans if "TEMP B-TREE" in plan], "a sort of all that waits"
    assert [plan for plan in plans if " jobs" in plan] == ["SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)"]


# no_worker


def test_a_job_says_that_no_worker_of_its_stage_lives(jobs: Jobs, database: Database) -> None:
    [first] = submit(jobs, "d1", version="7")
    [job] = jobs.list().jobs
    assert job == jobs.get(job.id)
    assert job.waiting is not None
    assert job.waiting.model_dump() == {
        "reason": "no_worker",
        "stage": "first",
        "pipeline_version": "7",
        "pipeline_digest": "d1",
        "message": "no worker of stage first serves",
    }
    assert [stage.reason for stage in job.stages] == ["no_worker", None]
    register(jobs, "w1", digest="d1")
    assert jobs.get(job.id).waiting is None
    assert jobs.get(job.id).stages[0].reason is None
    complete_all(jobs, "w1", [first])
    waiting = jobs.get(job.id).waiting  # at its second stage
    assert waiting is not None
    assert waiting.stage == "second"
    register(jobs, "w2", "second", digest="d1", lease_s=5)
    assert jobs.get(job.id).waiting is None
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
    [claimed] = claim(jobs, "w", submit(jobs, "d1"))
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
    hints = submit(jobs, "d")
    register(jobs, "w")
    [claimed] = claim(jobs, "w", hints)
    jobs.complete([done(claimed, "w", finish_reason="length", warnings=[CUT])])
    job = jobs.get(claimed.job_id)
    assert [(stage.status, stage.finish_reason) for stage in job.stages] == [
        (StageRunState.SUCCEEDED, "length"),
        (StageRunState.QUEUED, None),
    ]
    assert [warning.model_dump() for warning in job.warnings] == [{**CUT, "stage": "first"}]
    assert jobs.list().jobs == [job]


def test_a_retry_forgets_how_the_stage_had_ended(jobs: Jobs) -> None:
    register(jobs, "w")
    [claimed] = claim(jobs, "w", submit(jobs, "d", graph={"first": []}))
    jobs.complete([done(claimed, "w", finish_reason="length", warnings=[CUT])])
    jobs.retry(claimed.job_id, from_stage="first")
    job = jobs.get(claimed.job_id)
    assert (job.stages[0].finish_reason, job.warnings) == (None, [])


def test_many_ends_keep_each_their_own_reason(jobs: Jobs) -> None:
    register(jobs, "w", slots=100)
    claims = claim(jobs, "w", submit(jobs, "d", 40, graph={"first": []}))
    reasons = {each.job_id: reason for each, reason in zip(claims, 20 * ["length", None], strict=True)}
    jobs.complete([done(each, "w", finish_reason=reasons[each.job_id]) for each in claims])
    assert {job.id: job.stages[0].finish_reason for job in jobs.list(limit=100).jobs} == reasons


def test_rows_of_before_have_none(jobs: Jobs, database: Database) -> None:
    submit(jobs, "d")
    with database.begin() as tx:
        tx.execute(text("UPDATE stage_runs SET finish_reason = NULL, warnings = NULL"))
    assert jobs.list().jobs[0].warnings == []
