"""Jobs' progress, pages of jobs, counts and workers, on SQLite and on PostgreSQL."""

import re
from typing import Any

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import InvalidRequest, ModelError, NotFound, WorkerLost
from omni_jobs.identity import PipelineId
from omni_jobs.jobs import JobFilter, Jobs, ProgressReport, Release, StepSeconds
from omni_jobs.jobs.read.counts import stage_runs_in
from omni_jobs.states import JobState, StageRunState
from tests.integration.job_steps import (
    ANY_SCRIPT,
    claim,
    complete_all,
    done,
    fail,
    failed,
    new_job,
    register,
    register_each,
    release,
    submit_one,
)


@pytest.mark.parametrize(
    ("unit", "total", "finish_reason", "usage", "shown"),
    [
        ("steps", 31, None, {}, 31),
        ("seconds", 31, "stop", {"first": {"prompt_tokens": 0, "completion_tokens": 7}}, 31),
        ("tokens", 552, "stop", {"first": {"prompt_tokens": 9, "completion_tokens": 40}}, 40),
        ("tokens", None, "length", {"first": {"prompt_tokens": 9, "completion_tokens": 40}}, 40),
        ("tokens", 552, "stop", {"second": {"completion_tokens": 3}}, None),  # a server that does not count
        ("tokens", 552, None, {"first": {"prompt_tokens": 552, "completion_tokens": 0}}, 552),  # of the prompt
        ("bytes", None, None, {}, None),
    ],
)
def test_the_progress_of_a_stage_that_succeeded_is_what_it_made(
    jobs: Jobs, unit: str, total: int | None, finish_reason: str | None, usage: dict[str, Any], shown: int | None
) -> None:
    """The last report comes before the end."""
    register_each(jobs)
    submitted = submit_one(jobs, new_job())
    [claimed] = claim(jobs, "first")
    jobs.report_progress([ProgressReport(claimed.stage_run_id, 1, 1, total, unit)])
    jobs.report([done(claimed, "first", finish_reason=finish_reason, result={"usage": usage} if usage else {})])
    progress = jobs.get(submitted.job_id).stages[0].progress
    assert (progress and (progress.done, progress.total)) == (None if shown is None else (shown, total))
    [listed] = jobs.list(brief=True).jobs
    of_tokens = unit == "tokens" and finish_reason is not None
    assert listed.stages[0].progress == (None if of_tokens else progress)


def test_progress_is_shown_while_the_attempt_runs(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    jobs.report_progress([])
    jobs.report_progress(
        [
            ProgressReport(claimed.stage_run_id, 1, 3, 10, "tokens", "abc", "data:image/jpeg;base64,/9j="),
            ProgressReport(claimed.stage_run_id, 2, 9, 10, "tokens"),
            ProgressReport(4711, 1, 9, 10, "tokens"),
        ]
    )
    progress = jobs.get(submitted.job_id).stages[0].progress
    assert progress is not None
    assert progress.model_dump() == {
        "done": 3,
        "total": 10,
        "unit": "tokens",
        "text": "abc",
        "resumed_at": None,
        "picture": "data:image/jpeg;base64,/9j=",
    }
    release(jobs, [(claimed.stage_run_id, 1)], "w")
    assert jobs.get(submitted.job_id).stages[0].progress is None


def test_an_attempt_says_how_long_its_steps_took(jobs: Jobs) -> None:
    """While it runs, when it failed, when it was the last; and nothing of it stays with a retry."""
    register(jobs, "w")
    submitted = submit_one(jobs, new_job())

    def steps() -> tuple[float | None, ...]:
        stage = jobs.get(submitted.job_id).stages[0]
        return stage.load_s, stage.run_s, stage.store_s

    (claimed,) = claim(jobs, "w")
    assert steps() == (None, None, None)
    jobs.report_progress([ProgressReport(claimed.stage_run_id, 1, 3, 10, "tokens", load_s=0.25)])
    assert steps() == (0.25, None, None)
    fail(jobs, failed(claimed, "w", WorkerLost(), steps=StepSeconds(0.25, 1.5)))
    assert steps() == (None, None, None)  # it waits again
    [error] = jobs.get(submitted.job_id).stages[0].errors
    assert (error.load_s, error.run_s, error.store_s) == (0.25, 1.5, None)
    (claimed,) = claim(jobs, "w")
    fail(jobs, failed(claimed, "w", ModelError(), steps=StepSeconds(0.125)))
    assert steps() == (0.125, None, None)
    jobs.retry(submitted.job_id)
    assert steps() == (None, None, None)
    (claimed,) = claim(jobs, "w")
    jobs.report([done(claimed, "w", steps=StepSeconds(0.00004, 0.20006, 3))])
    assert steps() == (0.0, 0.2001, 3.0)
    [listed] = jobs.list(brief=True).jobs
    assert listed.stages[0].run_s == 0.2001


def test_a_job_that_is_stopped_keeps_how_long_its_steps_took(jobs: Jobs) -> None:
    register(jobs, "w")
    submitted = submit_one(jobs, new_job())
    (claimed,) = claim(jobs, "w")
    jobs.cancel(submitted.job_id)
    jobs.report([Release(claimed.stage_run_id, 1, "w", steps=StepSeconds(0.5, 2.0))])
    first = jobs.get(submitted.job_id).stages[0]
    assert (first.status, first.load_s, first.run_s) == (StageRunState.CANCELLED, 0.5, 2.0)


def test_text_of_any_script_comes_back_as_it_was(jobs: Jobs) -> None:
    register_each(jobs)
    value = {ANY_SCRIPT: [ANY_SCRIPT]}
    submitted = submit_one(jobs, new_job(request=value, metadata=value))
    (claimed,) = claim(jobs, "first")
    assert claimed.request == value
    jobs.report_progress([ProgressReport(claimed.stage_run_id, 1, 1, 1, "tokens", ANY_SCRIPT)])
    jobs.report([done(claimed, "first", result=value)])
    complete_all(jobs, "second")
    view = jobs.get(submitted.job_id)
    assert view.result == value
    assert view.metadata == value
    assert view.stages[0].progress is not None
    assert view.stages[0].progress.text == ANY_SCRIPT
    failing = submit_one(jobs, new_job())
    (claimed,) = claim(jobs, "first")
    fail(jobs, failed(claimed, "first", ModelError(ANY_SCRIPT, field=ANY_SCRIPT)))
    error = jobs.get(failing.job_id).error
    assert error is not None
    assert (error.message, error.field) == (ANY_SCRIPT, ANY_SCRIPT)


def test_pages_go_back_in_time(jobs: Jobs) -> None:
    ids = [submit_one(jobs, new_job()).job_id for _ in range(7)]
    page = jobs.list(limit=3)
    seen = [view.id for view in page.jobs]
    while page.next_cursor is not None:
        page = jobs.list(limit=3, cursor=page.next_cursor)
        seen += [view.id for view in page.jobs]
    assert seen == ids[::-1]


def test_pages_by_state_and_pipeline(jobs: Jobs) -> None:
    kept = submit_one(jobs, new_job()).job_id
    jobs.cancel(submit_one(jobs, new_job()).job_id)
    other = submit_one(jobs, new_job(pipeline=PipelineId("other", "d"))).job_id
    assert [view.id for view in jobs.list(JobFilter(states=frozenset([JobState.QUEUED]))).jobs] == [other, kept]
    assert [view.id for view in jobs.list(JobFilter(states=frozenset([JobState.QUEUED]), pipeline="echo")).jobs] == [
        kept
    ]
    assert jobs.list(JobFilter(pipeline="none")).jobs == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "job-\x00"}, "cursor"),
        ({"wanted": JobFilter(pipeline="\x00")}, "pipeline"),
    ],
)
def test_bad_pages_are_refused(jobs: Jobs, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        jobs.list(**arguments)
    assert caught.value.field == field


def test_what_is_not_there_is_not_found(jobs: Jobs) -> None:
    job_id = submit_one(jobs, new_job()).job_id
    for unknown in ("job-unknown", "\x00", "\ud800", ""):
        with pytest.raises(NotFound):
            jobs.get(unknown)
        with pytest.raises(NotFound):
            jobs.artifact(job_id, unknown)


@pytest.mark.parametrize("state", [StageRunState.QUEUED, StageRunState.PENDING])
def test_stage_runs_that_wait_are_counted_in_the_order_of_their_index(database: Database, state: StageRunState) -> None:
    """There may be a million of them, and a dashboard counts them every few seconds."""
    with database.begin() as tx:
        if database.dialect == "postgresql":
            tx.execute(text("SET LOCAL enable_seqscan = off"))  # the table is small
            tx.execute(text("SET LOCAL enable_bitmapscan = off"))
        query = stage_runs_in(state).compile(tx.engine, compile_kwargs={"literal_binds": True})
        explain = "EXPLAIN" if database.dialect == "postgresql" else "EXPLAIN QUERY PLAN"
        plan = "\n".join(row[-1] for row in tx.exec_driver_sql(f"{explain} {query}"))
    index = {StageRunState.QUEUED: "ix_stage_runs_queued", StageRunState.PENDING: "ix_stage_runs_pending_files"}[state]
    assert re.search(rf"Index Only Scan using {index} |USING INDEX {index}\b", plan), plan
    assert not re.search("Sort|TEMP B-TREE", plan), plan


def test_counts_and_workers_say_what_is_going_on(jobs: Jobs) -> None:
    jobs.submit_all([new_job() for _ in range(3)])
    register(jobs, "w", slots=2)
    register(jobs, "gone", lease_s=-1)
    claim(jobs, "w", 1)
    counts = jobs.counts()
    assert counts.jobs == {JobState.QUEUED: 2, JobState.IN_PROGRESS: 1, JobState.CANCELLING: 0}
    assert {(count.stage, count.state.value): count.count for count in counts.stage_runs} == {
        ("second", "pending"): 3,
        ("first", "queued"): 2,
        ("first", "running"): 1,
    }
    assert [(worker.id, worker.slots, worker.running) for worker in jobs.workers()] == [("w", 2, 1)]
