"""Lists of jobs, and rounds of the rescuer, whatever else waits."""

import json
import re
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Column, Connection, event, inspect, text

from omni_jobs.database.database import Database
from omni_jobs.identity import PipelineId
from omni_jobs.jobs import JobFilter, Jobs
from omni_jobs.jobs.read import job_view
from omni_jobs.states import JobState
from tests.integration.job_steps import (
    new_job,
    register,
    submit_one,
)
from tests.services.postgres import by_owner

QUEUED, FAILED, COMPLETED = (frozenset([state]) for state in (JobState.QUEUED, JobState.FAILED, JobState.COMPLETED))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_round_and_no_list_walks_through_all_that_waits(jobs: Jobs, database: Database) -> None:
    plans: list[str] = []

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith("SELECT"):
            rows = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[-1] for row in rows if " jobs " in row[-1] and "(id=?)" not in row[-1])

    submit_one(jobs, new_job(expires_in_s=1000))
    jobs.rescue()
    assert plans == ["SEARCH jobs USING INDEX ix_jobs_deadline (deadline<?)"]
    for options, index, states in (
        ({"pipeline": "echo"}, "ix_jobs_state_pipeline_id (state=? AND pipeline=?)", len(JobState)),
        ({"pipeline": "echo", "states": QUEUED}, "ix_jobs_state_pipeline_id (state=? AND pipeline=?)", 1),
        ({"error_code": "x", "pipeline": "echo", "states": FAILED}, "ix_jobs_error_code (error_code=?)", 1),
        ({"states": QUEUED}, "ix_jobs_state_pipeline_id (state=? AND pipeline=?)", 1),
    ):
        plans.clear()
        jobs.list(JobFilter(**options))
        found = [plan.split("INDEX ")[-1] for plan in plans]
        assert found[-states:] == [index] * states
        # Before it, the names of the pipelines, a step in the index for each, and bounded counts of what each serves.
        indexes = ("ix_jobs_state_pipeline_id (state=?", "ix_jobs_error_code (error_code=?)")
        assert all(plan.startswith(indexes) for plan in found[:-states])


LISTS_OF_A_TENANT: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "ix_jobs_tenant_state_id_pipeline"),
    ({"cursor": "job-1"}, "ix_jobs_tenant_state_id_pipeline"),
    ({"pipeline": "echo"}, "ix_jobs_tenant_state_id_pipeline"),
    ({"states": QUEUED}, "ix_jobs_tenant_state_id_pipeline"),
    ({"pipeline": "echo", "states": COMPLETED}, "ix_jobs_tenant_state_id_pipeline"),
    ({"error_code": "x"}, "ix_jobs_tenant_error_code"),
    ({"error_code": "x", "pipeline": "echo", "states": FAILED}, "ix_jobs_tenant_error_code"),
)


def test_what_a_tenant_reads_costs_nothing_for_the_jobs_of_others(jobs: Jobs, database: Database) -> None:
    """Each plan finds jobs by the tenant's own entries of an index, or by their ids; so does that of a position."""
    jobs.submit_all([new_job(tenant="a") for _ in range(2000)])
    own = [submit_one(jobs, new_job(tenant="b")).job_id for _ in range(2)]
    register(jobs, "w", slots=1)
    if database.dialect == "postgresql":
        by_owner(database, "ANALYZE")
    plans: list[str] = []
    explained = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith(("SELECT", "WITH")):
            rows = cursor.connection.execute(f"{explained} {statement}", parameters)
            plans.append("\n".join(str(row[-1]) for row in rows))

    def foreign(plan: str) -> list[str]:
        """Return the lines of a plan that find jobs or stage runs by anything but the tenant or the jobs' ids."""
        if database.dialect == "sqlite":
            steps = re.findall(r"(?:SCAN|SEARCH) (?:jobs|stage_runs).*", plan)
            return [step for step in steps if not re.search(r"\((?:tenant|id|job_id)=\?", step)]
        steps = re.split(r"\n(?=.*(?:Scan|Join|Loop|Append|Sort|Limit))", plan)
        read = [step for step in steps if re.search(r"(?:Scan\b.* on|using) ?\S* ?(?:on )?(?:jobs|stage_runs)", step)]
        return [step for step in read if not re.search(r"Cond: .*(?:tenant|\bid|job_id)\)?(?:::text)? = ", step)]

    for options, index in LISTS_OF_A_TENANT:
        plans.clear()
        jobs.list(
            JobFilter(tenant="b", **{key: value for key, value in options.items() if key != "cursor"}),
            cursor=options.get("cursor"),
        )
        assert any(index in plan for plan in plans), (options, plans)
        assert [foreign(plan) for plan in plans if foreign(plan)] == [], options
    plans.clear()
    assert sum(jobs.counts("b").jobs.values()) == len(own)
    assert plans
    assert [foreign(plan) for plan in plans if foreign(plan)] == []
    plans.clear()
    assert jobs.get(own[1], "b").waiting.position == 1  # type: ignore[union-attr]
    [position] = [plan for plan in plans if "ix_jobs_tenant_state_id_pipeline" in plan]
    assert foreign(position) == []


def test_a_known_key_is_found_by_its_index(jobs: Jobs, database: Database) -> None:
    plans: list[str] = []
    submit_one(jobs, new_job(tenant="a", idempotency_key="k"))
    explained = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith("SELECT"):
            rows = cursor.connection.execute(f"{explained} {statement}", parameters)
            plans.append("\n".join(str(row[-1]) for row in rows))

    assert not submit_one(jobs, new_job(tenant="a", idempotency_key="k")).created
    assert jobs.known_keys({("a", "k")}) == {("a", "k")}
    assert len(plans) == 2
    for plan in plans:
        assert "uq_jobs_idempotency_key_tenant" in plan
        assert "SCAN jobs" not in plan
        assert "Seq Scan on jobs" not in plan
        if database.dialect == "sqlite":
            assert "(idempotency_key=?" in plan
        else:
            assert re.search(r"Index Cond: .*idempotency_key", plan)


def test_lists_hold_the_newest_of_all_states(jobs: Jobs) -> None:
    ids = [submit_one(jobs, new_job()).job_id for _ in range(6)]
    jobs.cancel(ids[1])
    jobs.cancel(ids[4])
    submit_one(jobs, new_job(pipeline=PipelineId("another", "d")))

    def listed(**options: Any) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = jobs.list(JobFilter(**options), limit=2, cursor=cursor)
            found += [job.id for job in page.jobs]
            if (cursor := page.next_cursor) is None:
                return found

    assert listed(pipeline="echo") == ids[::-1]
    assert listed(pipeline="echo", states=frozenset([JobState.CANCELLED])) == [ids[4], ids[1]]
    assert listed(pipeline="echo", states=frozenset([JobState.FAILED])) == []
    assert len(listed()) == len(ids) + 1
    assert listed(states=frozenset([JobState.CANCELLED])) == [ids[4], ids[1]]
    assert len(listed(states=frozenset([JobState.QUEUED]))) == len(ids) - 1
    assert listed(states=frozenset([JobState.FAILED])) == []


MIB = 1 << 20
LARGE = "x" * (2 * MIB)


def peak_mib(call: Callable[[], object]) -> float:
    """The memory that Python takes for a call, at its most."""
    call()  # once before: what is built once is not counted
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


def completed(database: Database, job_ids: Sequence[str], result: str, progress: str = "null") -> None:
    """Give jobs of one stage a result, as a worker would."""
    with database.begin() as connection:
        for job_id in job_ids:
            connection.execute(text("UPDATE jobs SET state = 'completed' WHERE id = :id"), {"id": job_id})
            connection.execute(
                text(
                    "UPDATE stage_runs SET state = 'succeeded', result = :result, progress = :so_far WHERE job_id = :of"
                ),
                {"of": job_id, "result": result, "so_far": progress},
            )


def test_no_list_reads_a_request(jobs: Jobs, database: Database) -> None:
    request = {"messages": [{"role": "user", "content": LARGE}]}
    ids = [submit_one(jobs, new_job(request=request)).job_id for _ in range(20)]
    assert [job.id for job in jobs.list(limit=100).jobs] == ids[::-1]
    assert peak_mib(lambda: jobs.list(limit=100)) < 4  # 80 with the requests
    assert peak_mib(lambda: jobs.list(limit=30, brief=True)) < 4
    assert peak_mib(lambda: jobs.get(ids[0])) < 1
    if database.dialect == "sqlite":  # which reads a row up to the last column it is asked for
        columns = [column["name"] for column in inspect(database._engine).get_columns("jobs")]
        of_job = [column for column in job_view._JOB.selected_columns if isinstance(column, Column)]
        shown = {column.name for column in of_job}
        assert max(columns.index(name) for name in shown) < columns.index("request")


def test_a_page_ends_where_its_results_are_many_bytes(jobs: Jobs, database: Database) -> None:
    ids = [submit_one(jobs, new_job({"only": []})).job_id for _ in range(20)]
    completed(database, ids[:12], json.dumps({"text": LARGE}))
    completed(database, ids[12:18], json.dumps({"text": "small"}))
    found: list[str] = []
    pages: list[list[str]] = []
    cursor = None
    while True:
        page = jobs.list(limit=100, cursor=cursor)
        pages.append([job.id for job in page.jobs])
        found += pages[-1]
        for job in page.jobs:
            assert (job.result is None) == (job.id in ids[18:])
        if (cursor := page.next_cursor) is None:
            break
    assert found == ids[::-1]
    assert [len(page) for page in pages] == [8, *[1] * 12]  # the small, and then one large job a page
    assert peak_mib(lambda: jobs.list(limit=100, cursor=ids[12])) < 16  # one result, decoded; 12 of them before
    brief = jobs.list(limit=100, brief=True)
    assert [job.id for job in brief.jobs] == ids[::-1]
    assert all(job.result is None for job in brief.jobs)
    assert peak_mib(lambda: jobs.list(limit=100, brief=True)) < 4


def test_progress_and_errors_count_as_well(jobs: Jobs, database: Database) -> None:
    ids = [submit_one(jobs, new_job({"only": []})).job_id for _ in range(5)]
    progress = json.dumps({"done": 1, "total": 2, "unit": "tokens", "text": LARGE})
    completed(database, ids[:2], "{}", progress)
    with database.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET state = 'failed', error = :error WHERE id = :id"),
            {"id": ids[4], "error": json.dumps({"code": "model_error", "message": LARGE})},
        )
        run = connection.execute(text("SELECT id FROM stage_runs WHERE job_id = :id"), {"id": ids[3]}).scalar_one()
        connection.execute(text("UPDATE stage_runs SET failures = '{}' WHERE id = :id"), {"id": run})
        connection.execute(
            text("INSERT INTO attempt_errors VALUES (:id, 1, 'w', :error, 1.0, NULL, NULL)"),
            {"id": run, "error": json.dumps({"code": "model_error", "message": LARGE})},
        )
    for brief in (False, True):
        sizes, cursor = [], None
        while not sizes or cursor is not None:
            page = jobs.list(limit=100, cursor=cursor, brief=brief)
            sizes.append(len(page.jobs))
            cursor = page.next_cursor
        assert sizes == [1, 1, 1, 1, 1]
