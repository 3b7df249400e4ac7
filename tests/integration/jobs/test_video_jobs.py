"""Jobs that make a video: found by an index of their own, whatever else there is, page by page."""

import re
from typing import Any

import pytest
from sqlalchemy import Connection, event

from omni_jobs.database.database import Database
from omni_jobs.errors import NotFound
from omni_jobs.jobs import Jobs
from omni_jobs.jobs.read.videos import MOST_REQUEST
from tests.integration.job_steps import complete_all, new_job, register, submit_one
from tests.services.postgres import by_owner

FILM: dict[str, Any] = {"graph": {"first": []}, "modalities": ["text", "video"]}


def request(prompt: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "parameters": {}}


def film(jobs: Jobs, prompt: str = "a boat", **more: Any) -> str:
    return submit_one(jobs, new_job(**FILM, request=request(prompt), **more)).job_id


def ids(jobs: Jobs, limit: int, after: str | None = None, **options: Any) -> tuple[list[str], bool]:
    page = jobs.video_jobs(limit, after, **options)
    return [each.job.id for each in page.jobs], page.has_more


def test_pages_have_the_videos_of_a_tenant_in_both_orders(jobs: Jobs) -> None:
    own, others = [], []
    for number in range(5):
        own.append(film(jobs, str(number), tenant="a"))
        others.append(film(jobs, tenant="b"))
        submit_one(jobs, new_job(tenant="a"))
        submit_one(jobs, new_job(tenant="a", modalities=["videos"]))
    assert ids(jobs, 2, tenant="a") == (own[:2:-1], True)
    assert ids(jobs, 2, own[3], tenant="a") == (own[2:0:-1], True)
    assert ids(jobs, 2, own[1], tenant="a") == (own[:1], False)
    assert ids(jobs, 5, oldest_first=True, tenant="a") == (own, False)
    assert ids(jobs, 2, own[2], oldest_first=True, tenant="a") == (own[3:], False)
    assert ids(jobs, 100) == (sorted(own + others, reverse=True), False)
    assert ids(jobs, 2, own[0], tenant="a") == ([], False)
    asked = [each.request for each in jobs.video_jobs(1, tenant="a").jobs]
    assert asked == [request("4")]


def test_one_is_found_with_how_long_its_stages_take(jobs: Jobs) -> None:
    job_id = film(jobs, tenant="a")
    register(jobs, "w")
    assert jobs.video_job(job_id, "a").run_s == {}
    jobs.renew("w", 60, run_s=3.0)
    found = jobs.video_job(job_id, "a")
    assert (found.request, found.run_s) == (request("a boat"), {"first": 3.0})
    complete_all(jobs, "w")
    assert jobs.video_job(job_id, "a").run_s == {}
    for job, tenant in ((job_id, "b"), (submit_one(jobs, new_job(tenant="a")).job_id, "a"), ("job-1", None)):
        with pytest.raises(NotFound):
            jobs.video_job(job, tenant)


def test_a_request_that_is_too_long_is_not_read(jobs: Jobs) -> None:
    long = film(jobs, "x" * MOST_REQUEST)
    assert jobs.video_job(long).request is None
    assert [each.request for each in jobs.video_jobs(1).jobs] == [None]


@pytest.mark.parametrize(("tenant", "index"), [(None, "ix_jobs_video"), ("a", "ix_jobs_tenant_video")])
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("oldest_first", [False, True])
def test_no_list_walks_through_jobs_that_make_no_video(
    jobs: Jobs, database: Database, tenant: str | None, index: str, goes_on: bool, oldest_first: bool
) -> None:
    many = [new_job(tenant="a") for _ in range(1000)]
    jobs.submit_all(many)
    film(jobs, tenant="a")
    if database.dialect == "postgresql":
        by_owner(database, "ANALYZE")
    plans: list[str] = []
    explained = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith("SELECT") and "replace" in statement:
            rows = cursor.connection.execute(f"{explained} {statement}", parameters)
            plans.append("\n".join(str(row[-1]) for row in rows))

    jobs.video_jobs(20, many[500].job_id if goes_on else None, oldest_first=oldest_first, tenant=tenant)
    [plan] = plans
    assert re.search(rf"\b{index}\b", plan), plan
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan
