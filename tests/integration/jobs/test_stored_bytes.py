"""What tenants keep stored: the counters are the sums of what the rows hold, whatever comes, goes and is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import ModelError, OmniJobsError, WorkerLost
from omni_jobs.jobs import Claim, Completion, Jobs, NewJob, Retention, StoredArtifact
from omni_jobs.jobs.keep import stored_bytes as counter
from omni_jobs.storage import ObjectRef
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.job_steps import (
    DIAMOND,
    claim,
    counted_bytes,
    fail,
    failed,
    new_job,
    pass_time,
    register_each,
    stored_bytes,
)

KEEP_ALL = Retention(payloads_s=1e6, inputs_s=1e6, artifacts_s=1e6, events_s=1e6, jobs_s=1e6)
TENANTS = ("few", "many", "unknown")


def ref(size: int) -> ObjectRef:
    return ObjectRef(key=f"jobs/00/object-{size}", size=size, digest="xxh3:" + "0" * 32)


def job(tenant: str, size: int, **changes: Any) -> NewJob:
    media = [{**ref(each).model_dump(), "media_type": "image/png"} for each in range(size % 3)]
    request = {"messages": ["é" * size]}
    return new_job(DIAMOND, tenant=tenant, request=request, media=media, metadata={"a": "b" * size}, **changes)


def completion(claimed: Claim, size: int) -> Completion:
    payload: dict[str, Any] = {}
    if size % 3 == 1:
        payload = {"payload": ref(size), "payload_bytes": size}
    elif size % 3 == 2:
        payload = {"inline_payload": b"x" * size, "payload_bytes": size}
    artifacts = [StoredArtifact(f"{claimed.stage}.png", "image/png", ref(7 * size))] if size % 2 else []
    return Completion(
        claimed.stage_run_id,
        claimed.attempt,
        claimed.stage,
        result={"text": "é" * size},
        artifacts=artifacts,
        **payload,
    )


class Life:
    """Jobs of three tenants, which come, run, end, are retried and go."""

    def __init__(self, jobs: Jobs, database: Database) -> None:
        self.jobs = jobs
        self.database = database
        self.ids: list[str] = []
        self.has_keys = True
        Tenants(database).create("few", limits={"running_jobs": 2})
        register_each(jobs, DIAMOND, slots=100, lease_s=1e6)

    def step(self, what: str, size: int) -> None:
        stage = list(DIAMOND)[size % len(DIAMOND)]
        chosen = self.ids[size % len(self.ids)] if self.ids else "job-unknown"
        try:
            match what:
                case "submit":
                    key = f"k{size % 4}" if self.has_keys else None
                    batch = [job(tenant, size, idempotency_key=key) for tenant in TENANTS]
                    results = self.jobs.submit_all([*batch, job(TENANTS[size % 3], size)])
                    self.ids += [each.job_id for each in results if not isinstance(each, OmniJobsError)]
                case "complete":
                    self.jobs.report([completion(each, size) for each in claim(self.jobs, stage, 3)])
                case "fail":
                    errors = (ModelError("no"), WorkerLost())
                    for each in claim(self.jobs, stage, 1):
                        fail(self.jobs, failed(each, stage, errors[size % 2]))
                case "cancel":
                    self.jobs.cancel(chosen)
                case "retry":
                    self.jobs.retry(chosen, stage if size % 2 else None)
                case "delete":
                    self.jobs.delete(chosen)
                case "prune":
                    kinds = ("payloads_s", "inputs_s", "artifacts_s", "jobs_s")
                    self.jobs.prune(Retention(**{**vars_of(KEEP_ALL), kinds[size % 4]: 0.0}))
                case "collect":
                    self.jobs.forget_garbage([note.id for note in self.jobs.garbage(1000)])
        except OmniJobsError:
            pass  # the state forbids it

    def check(self) -> None:
        assert counted_bytes(self.database) == stored_bytes(self.database)
        for tenant in TENANTS:
            assert self.jobs.stored_bytes(tenant) == stored_bytes(self.database).get(tenant, 0)


def vars_of(retention: Retention) -> dict[str, float]:
    return {name: getattr(retention, name) for name in retention.__slots__}


KINDS = (
    "submit",
    "submit",
    "complete",
    "complete",
    "complete",
    "fail",
    "cancel",
    "retry",
    "delete",
    "prune",
    "collect",
)
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 40)), min_size=5, max_size=30)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_the_counters_are_the_sums(jobs_or_forgetful: Jobs, database: Database, steps: list[tuple[str, int]]) -> None:
    """Also where the answer of every commit is lost, so that each transaction is done a second time."""
    with database.begin() as tx:
        for table in ("garbage", "events", "artifacts", "attempt_errors", "stage_runs", "jobs", "workers", "tenants"):
            tx.execute(text(f"DELETE FROM {table}"))
        tx.execute(text("DELETE FROM stored_bytes"))
    life = Life(jobs_or_forgetful, database)
    for what, size in steps:
        life.step(what, size)
        life.check()


def test_every_transition_once(jobs_or_forgetful: Jobs, database: Database) -> None:
    life = Life(jobs_or_forgetful, database)
    for size in range(3):
        life.step("submit", size)
        life.check()
    sums = [stored_bytes(database)["many"]]
    for size in range(3, 12):
        life.step("complete", size)
        life.check()
    sums.append(stored_bytes(database)["many"])
    for what, size in (("retry", 1), ("complete", 0), ("cancel", 2), ("prune", 0), ("prune", 1), ("prune", 2)):
        life.step(what, size)
        life.check()
    for size in range(len(life.ids)):
        life.step("cancel", size)
        life.step("delete", size)
        life.check()
    life.step("prune", 3)
    assert sums[0] < sums[1]
    assert counted_bytes(database) == stored_bytes(database)
    assert stored_bytes(database).get("many", 0) == 0
    pass_time(database, 1)


def test_a_database_grows_by_what_is_counted(jobs: Jobs, database: Database) -> None:
    """Within what the rows that a database has not yet freed take: whoever may store n bytes fills no more than 3 n."""
    size = {
        "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
        "postgresql": "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables",
    }[database.dialect]
    before = database.read(lambda tx: tx.execute(text(size)).scalar_one())
    register_each(jobs, DIAMOND, slots=1000, lease_s=1e6)
    jobs.submit_all([new_job(DIAMOND, tenant="many") for _ in range(1000)])
    for stage in DIAMOND:
        jobs.report([completion(each, 0) for each in claim(jobs, stage, 1000)])
    grown = database.read(lambda tx: tx.execute(text(size)).scalar_one()) - before
    counted = jobs.stored_bytes("many")
    print(f"{grown / 1000:.0f} bytes a job, and counted {counted / 1000:.0f}")
    assert grown < 3 * counted


def test_processes_count_at_once(database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand for processes: each has its own connections and its own part of the counters."""
    life = Life(Jobs(database), database)
    parts = threading.local()
    monkeypatch.setattr(counter.os, "getpid", lambda: getattr(parts, "number", 0))

    def run(number: int) -> None:
        parts.number = number % 2
        other = Database(database_url)
        mine = Life.__new__(Life)
        mine.jobs, mine.database, mine.ids = Jobs(other), other, []
        mine.has_keys = False  # PostgreSQL may find a submit again and a retry of its job in a deadlock, and try again
        for size in range(12):
            for what in ("submit", "complete", "fail", "cancel", "retry", "prune"):
                mine.step(what, size + number)
        other.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    life.check()
    if database.dialect == "postgresql":
        query = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert database.read(lambda tx: tx.execute(query).scalar_one()) == 0
