"""``omni-jobs backup`` and ``restore``: of a system at work, into an empty place, where the jobs go on."""

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url, text

from omni_jobs.backup import make, make_backup, restore_backup
from omni_jobs.backup.manifest import BackupManifest
from omni_jobs.database.database import REVISION, Database
from omni_jobs.errors import Conflict, NotFound, StorageUnavailable
from omni_jobs.jobs import Jobs
from omni_jobs.maintenance.pruner import Pruner
from omni_jobs.settings import Settings
from omni_jobs.states import JobState
from omni_jobs.storage import LocalObjectStore, ObjectRef, ObjectStore, open_store, payload_key
from tests.integration.echo_stack import EchoStack
from tests.integration.job_steps import claim, done, new_job, register, submit_one
from tests.services.postgres import client_programs
from tests.services.seaweedfs import SeaweedFS

NewDatabase = Callable[[str], str]
LARGE = secrets.token_hex(50_000)  # a payload of it is an object, also packed


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NewDatabase]:
    """Gives the URL of a database without tables, by its name."""
    if request.param == "sqlite":
        yield lambda name: f"sqlite:///{tmp_path / name}.sqlite"
        return
    monkeypatch.setenv("PATH", f"{client_programs()}{os.pathsep}{os.environ['PATH']}")
    server: str = request.getfixturevalue("postgres_url")
    made: list[str] = []

    def new(name: str) -> str:
        made.append(f"{name}_{uuid4().hex}")
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {made[-1]}")
        return f"{server.rsplit('/', 1)[0]}/{made[-1]}"

    yield new
    with psycopg.connect(server, autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def one(new_database: NewDatabase) -> Iterator[Database]:
    """A migrated database; ``url`` is its URL."""
    with closing(Database(new_database("one"))) as database:
        database.migrate()
        yield database


def url_of(database: Database) -> str:
    return database._engine.url.set(drivername=database.dialect).render_as_string(hide_password=False)


def job_with_payload(jobs: Jobs, store: ObjectStore) -> tuple[str, ObjectRef]:
    """A job whose first stage has stored a payload, which its second stage waits to read."""
    job = new_job({"first": [], "second": ["first"]})
    submit_one(jobs, job)
    register(jobs, "w", "first")
    (claimed,) = claim(jobs, "w")
    ref = store.put(payload_key(job.job_id, "first", claimed.attempt), [LARGE.encode()])
    jobs.report([done(claimed, "w", payload=ref, payload_bytes=ref.size)])
    return job.job_id, ref


def command(directory: Path, url: str, *arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMNI_JOBS_DATABASE_URL": url, "OMNI_JOBS_DATA_DIR": str(directory)}
    return subprocess.Popen(
        [sys.executable, "-m", "omni_jobs.cli", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what it starts is killed with it
    )


def test_the_jobs_of_a_system_at_work_go_on_where_it_is_restored(
    new_database: NewDatabase, valkey_server: str, tmp_path: Path
) -> None:
    url = new_database("from")
    with closing(Database(url)) as database:
        database.migrate()
    (tmp_path / "from").mkdir(mode=0o700)
    stack = EchoStack(tmp_path / "from", url, valkey_server, {"OMNI_JOBS_INLINE_PAYLOAD_BYTES": "0"})
    try:
        stack.start("first")
        waiting = [stack.submit(f"{number} {LARGE}") for number in range(3)]  # for the second stage, which none runs
        running = stack.submit("running", first={"delay_s": 6})
        stack.running(running, "first")
        for job_id in waiting:
            stack.until(lambda job_id=job_id: stack.jobs.get(job_id).stages[0].status.is_final or None, 60)
        backup = command(tmp_path / "from", url, "backup", str(tmp_path / "backup"), "--objects", "--json")
        out, err = backup.communicate(timeout=60)
        assert backup.returncode == 0, err
        later = stack.submit("after the backup")
    finally:
        stack.close()
    manifest = json.loads(out)
    assert (manifest["jobs"], manifest["revision"], manifest["missing"]) == (4, REVISION, [])
    assert manifest["objects"] in (3, 4)  # also the payload of the one that ran, if that was slower than its stage

    url = new_database("to")
    (tmp_path / "to").mkdir(mode=0o700)
    restore = command(tmp_path / "to", url, "restore", str(tmp_path / "backup"), "--json")
    out, err = restore.communicate(timeout=60)
    assert restore.returncode == 0, err
    assert json.loads(out) == {"jobs": 4, "put": manifest["objects"], "missing": [], "schema": REVISION}
    again = command(tmp_path / "to", url, "restore", str(tmp_path / "backup"))
    assert (again.communicate(timeout=60)[1], again.returncode) == (
        "omni-jobs: the database is not empty: restore into an empty one, before omni-jobs migrate\n",
        1,
    )
    stack = EchoStack(tmp_path / "to", url, valkey_server, {"OMNI_JOBS_INLINE_PAYLOAD_BYTES": "0"})
    try:
        assert later not in {job.id for job in stack.jobs.list().jobs}
        stack.start("first", "second")
        for number, job_id in enumerate(waiting):
            ended = stack.ended(job_id)
            assert (ended.status, ended.result) == (JobState.COMPLETED, {"text": f"{number} {LARGE}"})
        assert stack.ended(running, 60).status is JobState.COMPLETED  # its worker's lease ran out
        new = stack.submit("new")
        assert stack.ended(new).result == {"text": "new"}
    finally:
        stack.close()


def test_what_is_let_go_during_a_backup_is_in_it(
    one: Database, new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job ends and a pruner comes after the database is copied, and before the objects are."""
    jobs, store = Jobs(one), LocalObjectStore(tmp_path / "objects")
    _, ref = job_with_payload(jobs, store)
    pruner = Pruner(jobs, store, Settings(keep_payloads_s=0))
    copy = make._copy_objects

    def end_and_copy(*arguments: Any) -> list[str]:
        register(jobs, "second", "second")
        (claimed,) = claim(jobs, "second")
        jobs.report([done(claimed, "second")])
        pruner.once()
        return copy(*arguments)

    monkeypatch.setattr(make, "_copy_objects", end_and_copy)
    made = make_backup(one, store, make_url(url_of(one)), tmp_path / "backup", with_objects=True)
    assert (made.objects, made.missing) == (1, [])
    pruner.once()
    assert list(store.list("jobs/")) == [], "the hold is over"
    with closing(Database(new_database("two"))) as two:
        other = LocalObjectStore(tmp_path / "other")
        restored = restore_backup(two, other, make_url(url_of(two)), tmp_path / "backup")
        assert (restored.put, restored.missing) == (1, [])
        assert bytes(other.read(ref, max_bytes=ref.size)) == LARGE.encode()
        two.check()
        jobs = Jobs(two)
        register(jobs, "second", "second")
        assert [each.upstream["first"] for each in claim(jobs, "second")] == [ref]


def test_older_and_newer_objects_beside_a_database(one: Database, new_database: NewDatabase, tmp_path: Path) -> None:
    """A backup without objects: what the store lacks is told, what it has too much is swept."""
    jobs, store = Jobs(one), LocalObjectStore(tmp_path / "objects")
    _, lost = job_with_payload(jobs, store)
    made = make_backup(one, store, make_url(url_of(one)), tmp_path / "backup", with_objects=False)
    assert (made.objects, made.has_objects) == (1, False)
    assert json.loads((tmp_path / "backup" / "objects.jsonl").read_text()) == lost.model_dump()
    store.delete([lost.key])
    newer = payload_key("job-later", "first", 1)
    store.put(newer, [b"x"])
    os.utime(store.path(newer), (0, 0))
    with closing(Database(new_database("two"))) as two:
        restored = restore_backup(two, store, make_url(url_of(two)), tmp_path / "backup")
        assert restored.missing == [lost.key]
        assert Pruner(Jobs(two), store, Settings()).once().orphans == 1
    assert list(store.list("jobs/")) == []


def test_a_restore_that_was_interrupted_is_run_again(
    one: Database, new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, store = Jobs(one), LocalObjectStore(tmp_path / "objects")
    refs = [job_with_payload(jobs, store)[1] for _ in range(3)]
    make_backup(one, store, make_url(url_of(one)), tmp_path / "backup", with_objects=True)
    url = new_database("two")
    other = LocalObjectStore(tmp_path / "other")
    with closing(Database(url)) as two:
        with monkeypatch.context() as patch:
            put, left = LocalObjectStore.put, [1]

            def fail_later(self: LocalObjectStore, key: str, *arguments: Any, **more: Any) -> ObjectRef:
                if not left:
                    raise StorageUnavailable("the store went away")
                left.pop()
                return put(self, key, *arguments, **more)

            patch.setattr(LocalObjectStore, "put", fail_later)
            with pytest.raises(StorageUnavailable):
                restore_backup(two, other, make_url(url), tmp_path / "backup")
        assert len(list(other.list("jobs/"))) == 1
        assert two.is_empty()
        assert restore_backup(two, other, make_url(url), tmp_path / "backup").put == 2
        two.check()
    assert {each.key for each in other.list("jobs/")} == {ref.key for ref in refs}


@pytest.mark.parametrize("round_", range(2))
def test_one_that_is_killed_leaves_nothing_that_counts(
    one: Database, new_database: NewDatabase, tmp_path: Path, round_: int
) -> None:
    add = (
        "INSERT INTO audit (id, at, actor, action, target, details) "
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000) "
        "SELECT 'act-' || i, 0, 'a', 'b', 'c', 'd' FROM n"
    )
    one.run(lambda tx: tx.execute(text(add)))
    partial = tmp_path / "partial"
    killed = command(tmp_path / "data", url_of(one), "backup", str(partial))
    while not partial.exists() and killed.poll() is None:
        pass
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    with pytest.raises(NotFound, match="not finished"):
        BackupManifest.read(partial)
    whole = tmp_path / "whole"
    make_backup(one, open_store(Settings(data_dir=tmp_path / "data")), make_url(url_of(one)), whole, with_objects=True)
    url = new_database("two")
    killed = command(tmp_path / "two", url, "restore", str(whole))
    threading.Event().wait(0.9 + 0.2 * round_)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    with closing(Database(url)) as two:
        if two.is_empty():
            again = command(tmp_path / "two", url, "restore", str(whole))
            assert again.communicate(timeout=60)[1] == ""
        assert two.read(lambda tx: tx.execute(text("SELECT count(*) FROM audit")).scalar_one()) == 60_000


def test_what_is_refused(one: Database, new_database: NewDatabase, tmp_path: Path) -> None:
    jobs, store = Jobs(one), LocalObjectStore(tmp_path / "objects")
    job_with_payload(jobs, store)
    url, backup = make_url(url_of(one)), tmp_path / "backup"
    make_backup(one, store, url, backup, with_objects=True)
    with pytest.raises(Conflict, match="holds a backup already"):
        make_backup(one, store, url, backup, with_objects=True)
    with pytest.raises(NotFound, match="not finished"):
        restore_backup(one, store, url, tmp_path)
    with pytest.raises(Conflict, match="is not empty, and holds no finished backup"):
        make_backup(one, store, url, tmp_path, with_objects=True)
    with pytest.raises(Conflict, match="the database is not empty"):
        restore_backup(one, store, url, backup)
    manifest = json.loads((backup / "backup.json").read_text())

    def refused(match: str, **changes: Any) -> None:
        (backup / "backup.json").write_text(json.dumps({**manifest, **changes}))
        with closing(Database(new_database("two"))) as two, pytest.raises(Conflict, match=match):
            restore_backup(two, store, make_url(url_of(two)), backup)

    refused("whose schema 9999 this version does not know", revision="9999")
    refused("it is a backup of", database="postgresql" if one.dialect == "sqlite" else "sqlite")
    refused("not what this version writes: format", format="omni-jobs backup 2")
    refused("is damaged", database_digest=f"xxh3:{'0' * 32}")
    listed = (backup / "objects.jsonl").read_text()
    for damaged, match in (("", "it lists 0 of 1 objects"), (f"{listed}\0\0", "line 2 is no object's")):
        (backup / "objects.jsonl").write_text(damaged)
        refused(match)
    (backup / "objects.jsonl").write_text(listed)
    (backup / "backup.json").write_text(json.dumps(manifest))
    store.put(payload_key("job-other", "first", 1), [b"x"])
    refused("the object store is not empty")
    (backup / manifest["database_file"]).write_bytes(b"")
    refused("the object store is not empty|is damaged")
    one.run(lambda tx: tx.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    with pytest.raises(Conflict, match="make the backup with the newer version"):
        make_backup(one, store, url, tmp_path / "newer", with_objects=True)


def test_a_host_without_postgresqls_programs_is_told(
    postgres_url: str, empty_databases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = empty_databases.take()
    monkeypatch.setenv("PATH", str(tmp_path))
    process = command(tmp_path / "data", url, "backup", str(tmp_path / "backup"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "pg_dump is not here: install PostgreSQL's programs" in err
    empty_databases.give_back(url)


def test_objects_of_s3(seaweedfs: SeaweedFS, tmp_path: Path) -> None:
    store = open_store(seaweedfs.settings(tmp_path, f"test-{uuid4().hex}"))
    with closing(Database(f"sqlite:///{tmp_path / 'one.sqlite'}")) as one:
        one.migrate()
        _, ref = job_with_payload(Jobs(one), store)
        make_backup(one, store, make_url(url_of(one)), tmp_path / "backup", with_objects=True)
    store.delete([ref.key])
    with closing(Database(f"sqlite:///{tmp_path / 'two.sqlite'}")) as two:
        restore_backup(two, store, make_url(url_of(two)), tmp_path / "backup")
    assert bytes(store.read(ref, max_bytes=ref.size)) == LARGE.encode()
