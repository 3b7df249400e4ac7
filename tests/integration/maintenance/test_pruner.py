"""The pruner on real databases and object stores: what goes, what stays, and what a kill -9 leaves."""

import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event, text

from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, ModelError, NotFound
from omni_jobs.identity import PipelineId
from omni_jobs.jobs import Claim, Jobs, Retention, StoredArtifact
from omni_jobs.jobs.keep.prune import hasten
from omni_jobs.maintenance import pruner as pruner_module
from omni_jobs.maintenance.pruner import Pruner, PrunerPass
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore, artifact_key, input_key, job_prefix, open_store, payload_key
from tests.integration.job_steps import (
    claim,
    done,
    fail,
    failed,
    new_job,
    pass_time,
    register,
    submit_one,
)
from tests.services.fault_proxy import Fault, FaultProxy
from tests.services.seaweedfs import SeaweedFS

TABLES = ("jobs", "stage_runs", "attempt_errors", "artifacts", "events", "garbage")
HOUR, DAY = 3600.0, 86_400.0
AT_ONCE: dict[str, float] = {
    f"keep_{kind}_s": 0.0 for kind in ("payloads", "inputs", "artifacts", "events", "jobs")
}  # fmt: skip


@pytest.fixture
def jobs(database: Database) -> Jobs:
    jobs = Jobs(database)
    for stage in ("first", "second"):
        register(jobs, f"w-{stage}", stage, slots=100)
    return jobs


def keys_of(store: ObjectStore) -> set[str]:
    return {stored.key for stored in store.list()}


def rows(database: Database) -> dict[str, int]:
    return database.read(
        lambda tx: {table: tx.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() for table in TABLES}
    )


def submitted(jobs: Jobs, store: ObjectStore) -> str:
    """A job with a medium, stored."""
    job = new_job()
    medium = store.put(input_key(job.job_id, 0), [b"medium"])
    media = [{**medium.model_dump(), "media_type": "audio/wav"}]
    return submit_one(jobs, new_job(job_id=job.job_id, media=media)).job_id


def run_stage(jobs: Jobs, store: ObjectStore, stage: str) -> Claim:
    """Claim, store a payload or an artifact, complete."""
    worker = f"w-{stage}"
    [claimed] = claim(jobs, worker)
    made: dict[str, Any]
    if stage == "first":
        made = {"payload": store.put(payload_key(claimed.job_id, stage, claimed.attempt), [b"payload"])}
    else:
        ref = store.put(artifact_key(claimed.job_id, stage, claimed.attempt, "a.wav"), [b"artifact"])
        made = {"artifacts": [StoredArtifact("a.wav", "audio/wav", ref)]}
    [outcome] = jobs.report([done(claimed, worker, **made)])
    assert outcome.won
    return claimed


def completed(jobs: Jobs, store: ObjectStore) -> str:
    job_id = submitted(jobs, store)
    run_stage(jobs, store, "first")
    run_stage(jobs, store, "second")
    return job_id


def half_failed(jobs: Jobs, store: ObjectStore) -> str:
    """A job whose second stage failed; the payload of the first is kept for a retry."""
    job_id = submitted(jobs, store)
    run_stage(jobs, store, "first")
    [claimed] = claim(jobs, "w-second")
    fail(jobs, failed(claimed, "w-second", ModelError()))
    return job_id


# What goes, and when


def test_each_kind_goes_in_its_time(database: Database, jobs: Jobs, storage_settings: Settings) -> None:
    store = open_store(storage_settings)
    pruner = Pruner(jobs, store, storage_settings)
    whole, broken = completed(jobs, store), half_failed(jobs, store)
    running = submitted(jobs, store)
    claim(jobs, "w-first")
    kept = {
        input_key(whole, 0), artifact_key(whole, "second", 1, "a.wav"),
        input_key(broken, 0), payload_key(broken, "first", 1), input_key(running, 0),
    }  # fmt: skip

    pruner.once()
    assert keys_of(store) == kept  # nobody needs the payload of a completed job
    pass_time(database, 2 * HOUR)
    assert pruner.once().payloads == 1
    kept -= {payload_key(broken, "first", 1)}
    assert keys_of(store) == kept
    pass_time(database, DAY)
    assert pruner.once().inputs == 2
    kept -= {input_key(whole, 0), input_key(broken, 0)}
    assert keys_of(store) == kept
    pass_time(database, 7 * DAY)
    found = pruner.once()
    assert (found.artifacts, found.events) == (2, 2)
    assert keys_of(store) == {input_key(running, 0)}
    assert jobs.get(whole).status == "completed"
    pass_time(database, 30 * DAY)
    assert pruner.once().jobs == 2
    assert rows(database) | {"garbage": 0} == {
        "jobs": 1, "stage_runs": 2, "attempt_errors": 0, "artifacts": 0, "events": 0, "garbage": 0,
    }  # fmt: skip
    assert keys_of(store) == {input_key(running, 0)}
    assert pruner.once() == PrunerPass()


SHORTENED = {
    "payloads": {"payloads": 3}, "inputs": {"inputs": 6}, "artifacts": {"artifacts": 6}, "jobs": {"jobs": 6},
}  # fmt: skip


@pytest.mark.parametrize("kind", SHORTENED)
def test_a_shortened_retention_frees_at_once(
    database: Database, storage_settings: Settings, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(storage_settings)
    long, short = storage_settings, storage_settings.model_copy(update={f"keep_{kind}_s": 60.0})
    jobs = Jobs(database, prune_after_s=Retention.of(long).without_payloads_s)
    for stage in ("first", "second"):
        register(jobs, f"w-{stage}", stage, slots=100)
    old = [make(jobs, store) for make in (completed, half_failed) for _ in range(3)]
    Pruner(jobs, store, long).once()  # writes the failed jobs' ``prune_at``
    with database.begin() as tx:  # not ``pass_time``, because the workers' leases would end
        tx.execute(text("UPDATE jobs SET finished_at = finished_at - 1200, prune_at = prune_at - 1200"))
    young = [make(jobs, store) for make in (completed, half_failed) for _ in range(3)]
    running = submitted(jobs, store)
    Pruner(jobs, store, long).collect()  # payloads of the completed jobs
    before = keys_of(store)
    monkeypatch.setattr(hasten, "__defaults__", (None, 4))  # several pages

    assert Pruner(jobs, store, long).once() == PrunerPass()
    found = asdict(Pruner(jobs, store, short).once())
    gone = before - keys_of(store)
    assert {each: count for each, count in found.items() if count} == {**SHORTENED[kind], "objects": len(gone)}
    of_kind = "" if kind == "jobs" else f"/{kind}/"
    assert gone == {key for key in before if of_kind in key and any(each in key for each in old)}
    assert not jobs.get(running).status.is_final
    assert Pruner(jobs, store, short).once() == PrunerPass()
    pass_time(database, 61)
    assert asdict(Pruner(jobs, store, short).once())[kind] == len(young) * SHORTENED[kind][kind] // len(old)


def test_a_rescuer_that_starts_with_a_shorter_retention_frees_in_its_first_round(
    database: Database, storage_settings: Settings
) -> None:
    store = open_store(storage_settings)
    jobs = Jobs(database, prune_after_s=Retention.of(storage_settings).without_payloads_s)
    for stage in ("first", "second"):
        register(jobs, f"w-{stage}", stage, slots=100)
    job_id = completed(jobs, store)
    pass_time(database, 61)
    Pruner(jobs, store, storage_settings.model_copy(update={"keep_artifacts_s": 60.0})).round()
    assert keys_of(store) == {input_key(job_id, 0)}


@pytest.mark.parametrize("kind", SHORTENED)
def test_a_lengthened_retention_keeps_what_is_there(database: Database, storage_settings: Settings, kind: str) -> None:
    store = open_store(storage_settings)
    long, short = storage_settings, storage_settings.model_copy(update={f"keep_{kind}_s": 60.0})
    jobs = Jobs(database, prune_after_s=Retention.of(short).without_payloads_s)
    for stage in ("first", "second"):
        register(jobs, f"w-{stage}", stage, slots=100)
    for make in (completed, half_failed):
        make(jobs, store)
    Pruner(jobs, store, short).once()
    before = keys_of(store)
    pass_time(database, 1200)
    assert Pruner(jobs, store, long).once() == PrunerPass()
    assert keys_of(store) == before


def test_what_a_shortened_retention_frees_is_found_by_an_index(database: Database, storage_settings: Settings) -> None:
    jobs = Jobs(database, prune_after_s=1000.0)
    for stage in ("first", "second"):
        register(jobs, f"w-{stage}", stage, slots=100)
    completed(jobs, open_store(storage_settings))
    keep = Retention(payloads_s=60, inputs_s=60, artifacts_s=60, events_s=60, jobs_s=60)
    sent: list[tuple[str, Any]] = []

    def note(_: object, __: object, sql: str, values: Any, *rest: object) -> None:
        sent.append((sql, values))

    with database.begin() as tx:
        event.listen(tx.engine, "before_cursor_execute", note)
        try:
            assert hasten(tx, keep, None, 100) is not None
        finally:
            event.remove(tx.engine, "before_cursor_execute", note)
        explain = "EXPLAIN QUERY PLAN " if tx.dialect.name == "sqlite" else "EXPLAIN "
        if tx.dialect.name == "postgresql":
            tx.execute(text("SET LOCAL enable_seqscan = off"))  # which it prefers for a table of one row
        searches = [each for each in sent if "prune_at >" in each[0]]
        plans = [str(tx.exec_driver_sql(explain + sql, values).all()) for sql, values in searches]
    assert len(plans) == 2
    assert all("ix_jobs_prune_at" in plan for plan in plans), plans


def test_a_deleted_job_leaves_nothing(database: Database, jobs: Jobs, object_store: ObjectStore) -> None:
    for job_id in (completed(jobs, object_store), half_failed(jobs, object_store)):
        jobs.delete(job_id)
    assert Pruner(jobs, object_store, Settings()).once().objects >= 4
    assert keys_of(object_store) == set()
    assert set(rows(database).values()) == {0}


def test_the_sweep_finds_what_lost_attempts_left(jobs: Jobs, object_store: ObjectStore) -> None:
    job_id = submitted(jobs, object_store)
    [claimed] = claim(jobs, "w-first")
    stranger = f"job-{uuid4().hex}"
    useful = {
        input_key(job_id, 0),
        payload_key(job_id, "first", claimed.attempt),  # about to be referred to
    }
    orphans = {
        payload_key(job_id, "first", claimed.attempt + 1),
        artifact_key(job_id, "second", 7, "a.wav"),
        input_key(job_id, 1),
        input_key(stranger, 0),
        payload_key(stranger, "first", 1),
    }
    for key in useful | orphans:
        object_store.put(key, [b"x"])
    young = Pruner(jobs, object_store, Settings(orphan_after_s=3600))
    assert young.once().orphans == 0
    assert keys_of(object_store) == useful | orphans
    old = Pruner(jobs, object_store, Settings().model_copy(update={"orphan_after_s": -1}))
    assert old.once().orphans == len(orphans)
    assert keys_of(object_store) == useful


def test_garbage_noted_before_a_retry_takes_nothing_of_it(
    database: Database, jobs: Jobs, storage_settings: Settings
) -> None:
    """A pruner that slept between reading its list and deleting meets the objects of a later attempt."""
    store = open_store(storage_settings)
    job_id = half_failed(jobs, store)
    pass_time(database, 2 * HOUR)
    sleeper = Pruner(jobs, store, storage_settings)
    sleeper.prune()
    noted = jobs.garbage()
    assert [found.what for found in noted] == [f"{job_prefix(job_id)}payloads/"]
    Pruner(jobs, store, storage_settings).once()
    jobs.retry(job_id, "first")
    register(jobs, "w-first")
    run_stage(jobs, store, "first")
    assert sleeper._delete_garbage(noted) == ([noted[0].id], 0)
    assert payload_key(job_id, "first", 2) in keys_of(store)


# Faults

KILLED = """
    import os, signal, sys
    from omni_jobs.database.database import Database
    from omni_jobs.jobs import Jobs
    from omni_jobs.maintenance.pruner import Pruner
    from omni_jobs.settings import read_settings
    from omni_jobs.storage import open_store

    left = int(sys.argv[1])

    def mortal(object, name):
        done = getattr(object, name)
        def call(*args, **options):
            global left
            for when in ("before", "after"):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                if when == "before":
                    answer = done(*args, **options)
            return answer
        setattr(object, name, call)

    jobs = Jobs(Database(read_settings().resolved_database_url))
    store = open_store(read_settings())
    for name in ("prune", "garbage", "forget_garbage", "orphans"):
        mortal(jobs, name)
    mortal(store, "delete")
    Pruner(jobs, store, read_settings()).once()
"""


@pytest.mark.parametrize("step", [2, 6, 7, 8, 10, 14, 19])
def test_a_kill_anywhere_leaves_nothing_for_ever(
    database: Database, database_url: str, jobs: Jobs, tmp_path: Path, step: int
) -> None:
    settings = Settings(data_dir=tmp_path, storage_sync=False)
    store = open_store(settings)
    completed(jobs, store)
    half_failed(jobs, store)
    running = submitted(jobs, store)
    claim(jobs, "w-first")
    pass_time(database, 60 * DAY)
    environment = {"OMNI_JOBS_DATA_DIR": str(tmp_path), "OMNI_JOBS_DATABASE_URL": database_url}
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(step)]
    ended = subprocess.run(command, env=environment, timeout=60)
    assert ended.returncode in (-signal.SIGKILL, 0)
    Pruner(jobs, store, settings).once()
    assert keys_of(store) == {input_key(running, 0)}
    found = rows(database)
    assert (found["jobs"], found["garbage"]) == (1, 0)


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """A file that even root cannot delete."""
    chattr = shutil.which("chattr")
    if chattr is None or subprocess.run([chattr, "+i", path], capture_output=True).returncode:
        pytest.skip("files cannot be made immutable here")
    try:
        yield
    finally:
        subprocess.run([chattr, "-i", path], check=True)


def test_one_object_that_cannot_be_deleted_keeps_no_other(
    database: Database, jobs: Jobs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(data_dir=tmp_path, storage_sync=False).model_copy(update={**AT_ONCE, "orphan_after_s": -1.0})
    store = open_store(settings)
    stuck = payload_key(f"job-{uuid4().hex}", "first", 1)
    for key in (stuck, *(payload_key(f"job-{uuid4().hex}", "first", 1) for _ in range(5))):
        store.put(key, [b"x"])
    pruner = Pruner(jobs, store, settings)
    with immutable(tmp_path / "objects" / stuck.replace("/payloads/first/", ",payloads,first,")):
        for _ in range(2):
            job_id = completed(jobs, store)
            pruner.once()
            with pytest.raises(NotFound):
                jobs.get(job_id)
        assert keys_of(store) == {stuck}
        assert rows(database)["garbage"] == 0
    assert caplog.text.count("cannot be deleted") == 1
    pruner.once()
    assert keys_of(store) == set()


def test_old_notes_whose_objects_cannot_be_deleted_keep_no_newer_ones(
    database: Database, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruner_module, "_NOTES_AT_ONCE", 1)
    settings = Settings(data_dir=tmp_path, storage_sync=False).model_copy(update=AT_ONCE)
    store = open_store(settings)
    pruner = Pruner(jobs, store, settings)
    job_id = completed(jobs, store)
    stuck = input_key(job_id, 0)
    [path] = (tmp_path / "objects").rglob(f"{job_id}*input*")
    with immutable(path):
        pruner.once()
        assert keys_of(store) == {stuck}
        noted = rows(database)["garbage"]
        assert noted > 0
        completed(jobs, store)
        pruner.once()
        assert keys_of(store) == {stuck}
        assert rows(database)["garbage"] == noted
    pruner.once()
    assert (keys_of(store), rows(database)["garbage"]) == (set(), 0)


def test_it_goes_on_when_the_object_store_is_back(
    database: Database, jobs: Jobs, seaweedfs: SeaweedFS, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = f"test-{uuid4().hex}"
    with FaultProxy(seaweedfs.endpoint_url, http=True) as proxy:
        settings = seaweedfs.settings(tmp_path, prefix).model_copy(
            update={"s3_endpoint_url": proxy.url, "prune_every_s": 0.1, **AT_ONCE}
        )
        store = open_store(settings)
        job_id = completed(jobs, store)
        pruner = Pruner(jobs, store, settings)
        thread = threading.Thread(target=pruner.run, args=(database,))
        proxy.set(Fault(refuse=True))
        thread.start()
        try:
            until(lambda: "pruner: " in caplog.text)
            assert rows(database)["garbage"] > 0
            proxy.clear()
            until(lambda: rows(database)["garbage"] == 0)
        finally:
            pruner.stop()
            thread.join(30)
        assert not thread.is_alive()
        assert keys_of(store) == set()
        with pytest.raises(NotFound):
            jobs.get(job_id)
    assert sum("pruner: " in record.message and record.levelname == "ERROR" for record in caplog.records) == 1


def until(is_true: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# Nothing that runs is ever pruned


class Client:
    """Submits jobs and runs them itself, some failing and sent on again, and checks what it needs at each step.

    Its jobs are of a pipeline file of its own, so that its workers claim no others.
    """

    def __init__(self, jobs: Jobs, store: ObjectStore, seed: int, number_of_jobs: int) -> None:
        self.jobs, self.store = jobs, store
        self.chance = random.Random(seed)
        self.number_of_jobs = number_of_jobs
        self.digest = f"of-{seed}"
        self.retried = 0

    def run(self) -> None:
        for stage in ("first", "second"):
            register(self.jobs, f"{self.digest}-{stage}", stage, slots=10, digest=self.digest)
        for _ in range(self.number_of_jobs):
            self.live()

    def live(self) -> None:
        job_id = submit_one(self.jobs, new_job(pipeline=PipelineId("echo", self.digest))).job_id
        while True:
            for stage in ("first", "second"):
                for claimed in claim(self.jobs, f"{self.digest}-{stage}"):
                    assert claimed.job_id == job_id
                    self.step(claimed, f"{self.digest}-{stage}")
            try:  # it has ended: from here on it may be gone at any moment
                self.jobs.retry(job_id, self.chance.choice((None, "first", "second")))
            except (NotFound, Conflict):
                return
            self.retried += 1

    def step(self, claimed: Claim, worker: str) -> None:
        for payload in claimed.upstream.values():
            assert payload is not None
            assert not isinstance(payload, bytes)
            assert bytes(self.store.read(payload, max_bytes=100)) == claimed.job_id.encode()
        self.pause()
        fate = self.chance.random()
        if fate < 0.15:
            outcome = fail(self.jobs, failed(claimed, worker, ModelError()))
        elif claimed.stage == "first":
            key = payload_key(claimed.job_id, "first", claimed.attempt)
            ref = self.store.put(key, [claimed.job_id.encode()])
            self.pause()
            [outcome] = self.jobs.report([done(claimed, worker, payload=ref)])
        else:
            ref = self.store.put(artifact_key(claimed.job_id, "second", claimed.attempt, "a"), [b"a"])
            self.pause()
            self.store.read(ref, max_bytes=100)  # not recorded yet, and not taken for an orphan
            [outcome] = self.jobs.report([done(claimed, worker, artifacts=[StoredArtifact("a", "audio/wav", ref)])])
        assert outcome.won

    def pause(self) -> None:
        if self.chance.random() < 0.3:
            time.sleep(self.chance.random() * 0.02)


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_that_runs_is_ever_pruned(database: Database, jobs: Jobs, tmp_path: Path, seed: int) -> None:
    """Two pruners that keep nothing, not even young objects, beside clients that need everything."""
    settings = Settings(data_dir=tmp_path, storage_sync=False).model_copy(
        update={**AT_ONCE, "keep_jobs_s": 0.3, "keep_payloads_s": 0.2, "orphan_after_s": -1.0}
    )
    store = open_store(settings)
    clients = [Client(jobs, store, seed * 100 + number, 15) for number in range(4)]
    ended = threading.Event()

    def prune() -> int:
        passes = 0
        while not ended.is_set():
            Pruner(jobs, store, settings).once()
            passes += 1
        return passes

    with ThreadPoolExecutor(6) as pool:
        pruners = [pool.submit(prune) for _ in range(2)]
        lives = [pool.submit(client.run) for client in clients]
        try:
            for life in lives:
                life.result(120)
        finally:
            ended.set()
        assert all(pruner.result() > 3 for pruner in pruners)
    assert sum(client.retried for client in clients) > 0
    time.sleep(0.4)
    Pruner(jobs, store, settings).once()
    assert set(rows(database).values()) == {0}
    assert keys_of(store) == set()
