"""Lists of jobs, and rounds of the rescuer, whatever else waits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import Connection, event

from omni_jobs.db import Database
from omni_jobs.jobs import Jobs
from omni_jobs.states import JobState
from tests.integration.job_steps import new_job


@pytest.fixture
def jobs(database: Database) -> Jobs:
    return Jobs(database)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_round_and_no_list_walks_through_all_that_waits(jobs: Jobs, database: Database) -> None:
    plans: list[str] = []

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith("SELECT"):
            rows = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[-1] for row in rows if " jobs " in row[-1] and "(id=?)" not in row[-1])

    jobs.submit(new_job(expires_in_s=1000))
    jobs.rescue()
    assert plans == ["SEARCH jobs USING INDEX ix_jobs_deadline (deadline<?)"]
    for options, index, states in (
        ({"pipeline": "echo"}, "ix_jobs_state_pipeline_id (state=? AND pipeline=?)", len(JobState)),
        ({"pipeline": "echo", "state": JobState.QUEUED}, "ix_jobs_state_pipeline_id (state=? AND pipeline=?)", 1),
        ({"error_code": "x", "pipeline": "echo", "state": JobState.FAILED}, "ix_jobs_error_code (error_code=?)", 1),
        ({"state": JobState.QUEUED}, "ix_jobs_state_pipeline_id (state=? AND pipeline=?)", 1),
    ):
        plans.clear()
        jobs.list(**options)
        found = [plan.split("INDEX ")[-1] for plan in plans]
        assert found[-states:] == [index] * states
        # Before it, the names of the pipelines: a step in the same index for each.
        assert all(plan.startswith("ix_jobs_state_pipeline_id (state=?") for plan in found[:-states])


def test_a_known_key_is_found_by_its_index(jobs: Jobs, database: Database) -> None:
    plans: list[str] = []
    jobs.submit(new_job(tenant="a"), idempotency_key="k")
    explained = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith("SELECT"):
            rows = cursor.connection.execute(f"{explained} {statement}", parameters)
            plans.append("\n".join(str(row[-1]) for row in rows))

    assert not jobs.submit(new_job(tenant="a"), idempotency_key="k").created
    assert jobs.is_known("a", "k")
    assert len(plans) == 2
    for plan in plans:
        assert "uq_jobs_tenant_idempotency_key" in plan
        assert "SCAN jobs" not in plan
        assert "Seq Scan on jobs" not in plan
        if database.dialect == "sqlite":
            assert "(tenant=? AND idempotency_key=?)" in plan
        else:
            assert re.search(r"Index Cond: .*tenant.* AND .*idempotency_key", plan)


def test_lists_hold_the_newest_of_all_states(jobs: Jobs) -> None:
    ids = [jobs.submit(new_job()).job_id for _ in range(6)]
    jobs.cancel(ids[1])
    jobs.cancel(ids[4])
    jobs.submit(new_job(pipeline="another"))

    def listed(**options: Any) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = jobs.list(limit=2, cursor=cursor, **options)
            found += [job.id for job in page.jobs]
            if (cursor := page.next_cursor) is None:
                return found

    assert listed(pipeline="echo") == ids[::-1]
    assert listed(pipeline="echo", state=JobState.CANCELLED) == [ids[4], ids[1]]
    assert listed(pipeline="echo", state=JobState.FAILED) == []
    assert len(listed()) == len(ids) + 1
    assert listed(state=JobState.CANCELLED) == [ids[4], ids[1]]
    assert len(listed(state=JobState.QUEUED)) == len(ids) - 1
    assert listed(state=JobState.FAILED) == []
