"""What was used: of each stage run, and by tenant, day, pipeline and stage, whatever becomes of the jobs."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.database.tables import decode_json
from omni_jobs.errors import InvalidRequest, ModelError, OutOfMemory, WorkerLost
from omni_jobs.jobs import AMOUNTS, Claim, Jobs, Retention
from omni_jobs.jobs.keep import usage as kept
from omni_jobs.views import UsageReport, UsageView
from tests.integration.job_steps import (
    CHAIN,
    claim,
    complete_each,
    done,
    fail,
    failed,
    new_job,
    pass_time,
    register,
    register_each,
    release,
    submit_one,
)

MADE: Mapping[str, float] = {"prompt_tokens": 5, "completion_tokens": 7, "sound_s": 1.5, "pictures": 1, "frames": 3}
FOREVER = (date(2000, 1, 1), date(2200, 1, 1))
KEEP_NOTHING = Retention(payloads_s=0, inputs_s=0, artifacts_s=0, events_s=0, jobs_s=0)


def began_earlier(database: Database, claimed: Claim, seconds: float) -> None:
    """As if an attempt had been claimed so many seconds before."""
    with database.begin() as tx:
        change = text("UPDATE stage_runs SET started_at = started_at - :s WHERE id = :id")
        tx.execute(change, {"s": seconds, "id": claimed.stage_run_id})


def used(jobs: Jobs, job_id: str, stage: str = "first") -> UsageView:
    [view] = [each for each in jobs.get(job_id).stages if each.name == stage]
    assert view.usage is not None
    return view.usage


def total(jobs: Jobs, **options: Any) -> UsageView:
    return jobs.usage(*FOREVER, **options).total


def test_a_completion_says_what_was_used(jobs: Jobs, database: Database) -> None:
    register(jobs, "w")
    job = submit_one(jobs, new_job(tenant="a")).job_id
    assert jobs.get(job).usage is None
    assert jobs.get(job).stages[0].usage is None
    [claimed] = claim(jobs, "w")
    began_earlier(database, claimed, 30)
    jobs.report([done(claimed, "w", made=MADE, device_s=2.25)])
    first = used(jobs, job)
    assert first.model_dump(exclude={"worker_s"}) == {"attempts": 1, "device_s": 2.25, "heard_s": 0.0, **MADE}
    assert 30 <= first.worker_s < 60
    view = jobs.get(job)
    assert (view.usage, view.stages[1].usage) == (first, None)
    report = jobs.usage(*FOREVER)
    [row] = report.rows
    today = datetime.now(UTC).date()
    assert (row.tenant, row.pipeline, row.stage, row.usage) == ("a", "echo", "first", first)
    assert row.day in (today, today - timedelta(days=1))
    assert report.total == first


def test_every_attempt_counts_also_those_that_were_lost(jobs: Jobs, database: Database) -> None:
    register(jobs, "w")
    job = submit_one(jobs, new_job({"first": []})).job_id

    def next_attempt(worker: str) -> Claim:
        pass_time(database, 3600)
        register(jobs, worker)
        [claimed] = claim(jobs, worker)
        began_earlier(database, claimed, 10)
        return claimed

    fail(jobs, failed(next_attempt("w"), "w", OutOfMemory()))
    assert used(jobs, job).attempts == 1
    handed_back = next_attempt("x")
    release(jobs, [(handed_back.stage_run_id, handed_back.attempt)], "x")
    next_attempt("y")
    with database.begin() as tx:
        tx.execute(text("UPDATE workers SET lease_until = 0 WHERE id = 'y'"))
    assert jobs.rescue().freed == 1
    lost = used(jobs, job)
    assert (lost.attempts, jobs.get(job).stages[0].errors[-1].code) == (3, WorkerLost.code)
    assert 30 <= lost.worker_s < 60
    jobs.report([done(next_attempt("z"), "z", made=MADE)])
    whole = used(jobs, job)
    assert (whole.attempts, whole.completion_tokens) == (4, 7)
    assert 40 <= whole.worker_s < 80
    assert total(jobs) == whole


def test_what_is_not_kept_of_a_completion_took_time_all_the_same(jobs: Jobs, database: Database) -> None:
    register(jobs, "w")
    job = submit_one(jobs, new_job()).job_id
    [claimed] = claim(jobs, "w")
    jobs.cancel(job)
    jobs.report([done(claimed, "w", made=MADE, device_s=3)])
    assert jobs.get(job).status == "cancelled"
    assert (used(jobs, job).device_s, used(jobs, job).completion_tokens) == (3, 0)
    assert total(jobs).device_s == 3


def test_a_repeated_report_counts_once(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "w")
    job = submit_one(jobs, new_job()).job_id
    [claimed] = claim(jobs, "w")
    for _ in range(3):
        jobs.report([done(claimed, "w", made=MADE)])
    assert used(jobs, job).attempts == total(jobs).attempts == 1


def test_a_retry_goes_on_counting(jobs: Jobs) -> None:
    register_each(jobs)
    job = submit_one(jobs, new_job()).job_id
    complete_each(jobs)
    jobs.retry(job, "second")
    assert (used(jobs, job).attempts, used(jobs, job, "second").attempts) == (1, 1)
    complete_each(jobs)
    assert (used(jobs, job).attempts, used(jobs, job, "second").attempts) == (1, 2)
    view = jobs.get(job)
    assert view.usage is not None
    assert view.usage.attempts == total(jobs).attempts == 3


def test_what_deleted_and_pruned_jobs_used_stays(jobs: Jobs, database: Database) -> None:
    register_each(jobs)
    ids = [submit_one(jobs, new_job()).job_id for _ in range(2)]
    complete_each(jobs)
    before = total(jobs)
    assert before.attempts == 4
    jobs.delete(ids[0])
    assert jobs.prune(KEEP_NOTHING).jobs == 1
    assert jobs.list().jobs == []
    assert total(jobs) == before


def test_a_report_adds_up_by_what_is_asked_for(jobs: Jobs, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    register_each(jobs)
    for tenant in ("a", "a", "b"):
        submit_one(jobs, new_job(tenant=tenant))
    complete_each(jobs)
    monkeypatch.setattr(kept.stored_bytes, "own_part", lambda: 99)  # another process
    submit_one(jobs, new_job(tenant="b"))
    complete_each(jobs)
    with database.begin() as tx:
        yesterday = text("UPDATE usage_days SET day = day - 1 WHERE tenant = 'a' AND stage = 'first'")
        tx.execute(yesterday)

    def counted(**options: Any) -> list[tuple[Any, ...]]:
        rows = jobs.usage(*FOREVER, **options).rows
        return [(row.tenant, row.pipeline, row.stage, row.usage.attempts) for row in rows]

    assert counted() == [
        ("a", "echo", "second", 2),
        ("b", "echo", "first", 2),
        ("b", "echo", "second", 2),
        ("a", "echo", "first", 2),
    ]
    assert counted(by=["tenant"]) == [("a", None, None, 4), ("b", None, None, 4)]
    assert counted(by=["stage"], tenant="b") == [(None, None, "first", 2), (None, None, "second", 2)]
    assert counted(by=[]) == []
    assert total(jobs, by=[], tenant="a").attempts == 4
    assert total(jobs, pipeline="other") == total(jobs, tenant="c", by=["day"]) == UsageView()
    days = jobs.usage(*FOREVER, by=["day"]).rows
    assert [row.usage.attempts for row in days] == [6, 2]
    first, last = (row.day for row in days[::-1])
    assert first is not None
    assert last == first + timedelta(days=1)
    assert jobs.usage(first, first).total.attempts == 2
    assert jobs.usage(last, FOREVER[1]).total.attempts == 6
    monkeypatch.setattr(kept, "MOST_ROWS", 1)
    with pytest.raises(InvalidRequest) as caught:
        jobs.usage(*FOREVER)
    assert caught.value.field == "by"
    for name in ("tenant", "pipeline"):
        with pytest.raises(InvalidRequest) as caught:
            jobs.usage(*FOREVER, **{name: "\x00"})
        assert caught.value.field == name


def test_days_are_kept_for_their_time(jobs: Jobs, database: Database) -> None:
    register_each(jobs)
    submit_one(jobs, new_job())
    complete_each(jobs)
    with database.begin() as tx:
        tx.execute(text("UPDATE usage_days SET day = day - 3 WHERE stage = 'first'"))
    assert jobs.prune_usage(4 * 86_400.0) == 0
    assert jobs.prune_usage(2 * 86_400.0) == 1
    assert [row.stage for row in jobs.usage(*FOREVER).rows] == ["second"]


@pytest.mark.parametrize("made", [{"prompt_tokens": 2**62}, {"sound_s": float("inf")}, {"pictures": -3, "other": 1}])
def test_a_wrong_count_spoils_nothing(jobs: Jobs, made: dict[str, float]) -> None:
    register(jobs, "w")
    for _ in range(3):
        submit_one(jobs, new_job({"first": []}))
    jobs.report([done(each, "w", made=made) for each in claim(jobs, "w")])
    found = total(jobs)
    assert found.attempts == 3
    assert found.prompt_tokens in (0, 3 * 10**12)
    assert (found.sound_s, found.pictures) == (0, 0)


ACTIONS = ("submit", "complete", "fail", "lose", "release", "cancel", "retry", "delete", "prune")


@settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9)), max_size=30))
def test_the_days_are_the_sum_of_all_stage_runs_that_ever_were(
    jobs: Jobs, database: Database, steps: list[tuple[str, int]]
) -> None:
    with database.begin() as tx:
        for table in ("events", "stage_runs", "jobs", "workers", "usage_days", "garbage", "stored_bytes"):
            tx.execute(text(f"DELETE FROM {table}"))
    gone: Counter[tuple[str, str]] = Counter()
    boots = 0

    def of_rows(database: Database) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        query = text("SELECT jobs.tenant, usage FROM stage_runs JOIN jobs ON jobs.id = job_id WHERE usage IS NOT NULL")
        with database.begin() as tx:
            for tenant, amounts in tx.execute(query):
                for name, amount in decode_json(amounts).items():
                    found[tenant, name] += amount
        return found

    for what, number in [("submit", 0), *steps]:
        ids = [each.id for each in jobs.list(limit=100).jobs]
        chosen = ids[number % len(ids)] if ids else "job-unknown"
        before = of_rows(database)
        match what:
            case "submit":
                submit_one(jobs, new_job(tenant="ab"[number % 2]))
            case "complete" | "fail" | "lose" | "release":
                boots += 1
                stage = list(CHAIN)[number % 2]
                register(jobs, f"w{boots}", stage)
                pass_time(database, 1)
                held = claim(jobs, f"w{boots}", 3)
                for each in held:
                    began_earlier(database, each, number + 0.5)
                    match what:
                        case "complete":
                            jobs.report([done(each, f"w{boots}", made=MADE, device_s=number)])
                        case "fail":
                            fail(jobs, failed(each, f"w{boots}", ModelError() if number % 2 else OutOfMemory()))
                        case "release":
                            release(jobs, [(each.stage_run_id, each.attempt)], f"w{boots}")
                with database.begin() as tx:
                    tx.execute(text("UPDATE workers SET lease_until = 0"))
                jobs.rescue()
            case "cancel" if ids:
                jobs.cancel(chosen)
            case "retry" if ids and jobs.get(chosen).status.is_final:
                jobs.retry(chosen, "first")
            case "delete" if ids and jobs.get(chosen).status.is_final:
                jobs.delete(chosen)
            case "prune":
                jobs.prune(KEEP_NOTHING)
        if what in ("delete", "prune"):
            gone += before - of_rows(database)
        expected = gone + of_rows(database)
        report: UsageReport = jobs.usage(*FOREVER, by=["tenant"])
        counted = {
            (str(row.tenant), name): amount
            for row in report.rows
            for name, amount in row.usage.model_dump().items()
            if amount
        }
        assert counted == pytest.approx(dict(expected), abs=1e-4)
        assert {name for _, name in expected} <= set(AMOUNTS)
