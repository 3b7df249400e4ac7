"""``make_backup``: writes a backup of a system that may be at work."""

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy import URL, Connection, func, select

from omni_jobs.backup import postgresql_dump, sqlite_copy
from omni_jobs.backup.manifest import OBJECT_REFS, OBJECTS, BackupManifest, OnProgress, digest_of, object_refs
from omni_jobs.backup.referred import referred
from omni_jobs.database.clock import as_datetime, now
from omni_jobs.database.database import REVISION, Database
from omni_jobs.database.tables import JobRow
from omni_jobs.errors import Conflict, ObjectMissing, OmniJobsError
from omni_jobs.jobs import Jobs
from omni_jobs.storage import LocalObjectStore, ObjectRef, ObjectStore

_LEASE_S: Final = 60.0
_RENEW_S: Final = 15.0
_THREADS: Final = 8
_AT_ONCE: Final = 64  # objects
_MOST_MISSING: Final = 1000  # keys that the manifest names

T = TypeVar("T")


def make_backup(
    database: Database,
    store: ObjectStore,
    url: URL,
    directory: Path,
    *,
    with_objects: bool,
    on_progress: OnProgress = lambda *_: None,
) -> BackupManifest:
    """Write a backup into a new or empty directory, and return its manifest. ``url`` is the database's.

    Raises Conflict if the directory holds anything or the schema is of a newer build, ConfigError without PostgreSQL's
    programs, DatabaseUnavailable, StorageError and OSError. What an error leaves is no backup, because its manifest is
    missing.
    """
    if database.is_ahead():
        raise Conflict(
            "a newer version made the database's schema, whose rows may refer to objects in ways that this one does "
            "not know: make the backup with the newer version"
        )
    _claim(directory)
    with _held(Jobs(database)) as check_held:
        moment, jobs, count, size = database.read(partial(_dump, database, url, directory, on_progress))
        missing: list[str] = []
        if with_objects:
            missing = _copy_objects(store, directory, count, on_progress)
            check_held()
    file = directory / _file_of(database)
    manifest = BackupManifest(
        made_at=moment,
        build=version("omni-jobs"),
        database="sqlite" if database.dialect == "sqlite" else "postgresql",
        revision=REVISION,
        jobs=jobs,
        database_file=file.name,
        database_bytes=file.stat().st_size,
        database_digest=digest_of(file),
        objects=count,
        object_bytes=size,
        has_objects=with_objects,
        missing=missing,
    )
    manifest.write(directory)
    return manifest


def _claim(directory: Path) -> None:
    """Make the directory, unless it is there and empty. Raises Conflict."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (directory / "backup.json").exists():
        raise Conflict(f"{directory} holds a backup already: name another directory")
    if any(directory.iterdir()):
        raise Conflict(f"{directory} is not empty, and holds no finished backup: name another directory, or empty it")


@contextmanager
def _held(jobs: Jobs) -> Iterator[Callable[[], None]]:
    """A context manager in which no pruner deletes objects; gives a function that raises if that did not hold."""
    holder, over = f"backup-{secrets.token_hex(8)}", threading.Event()
    lost: list[OmniJobsError] = []
    jobs.hold_deletes(holder, _LEASE_S)

    def renew() -> None:
        while not over.wait(_RENEW_S):
            try:
                jobs.hold_deletes(holder, _LEASE_S)
            except OmniJobsError as error:  # the database was away for ten seconds
                lost.append(error)
                return

    def check_held() -> None:
        if lost:
            raise lost[0]

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield check_held
    finally:
        over.set()
        thread.join()
        jobs.end_hold(holder)


def _file_of(database: Database) -> str:
    return sqlite_copy.FILE if database.dialect == "sqlite" else postgresql_dump.FILE


def _dump(
    database: Database, url: URL, directory: Path, on_progress: OnProgress, tx: Connection
) -> tuple[datetime, int, int, int]:
    """Write the database and its object refs, both of one moment; return it, and the numbers of jobs, refs, bytes."""
    moment, jobs = tx.execute(select(now(), select(func.count()).select_from(JobRow).scalar_subquery())).one()
    counted = [0, 0]

    def write_refs() -> None:
        with (directory / OBJECT_REFS).open("wb") as file:
            for ref in referred(tx):
                file.write(ref.model_dump_json().encode() + b"\n")
                counted[0] += 1
                counted[1] += ref.size

    if database.dialect == "sqlite":
        sqlite_copy.dump(tx, directory / _file_of(database), on_progress)
        write_refs()
    else:
        postgresql_dump.dump(tx, url, directory / _file_of(database), on_progress, write_refs)
    return as_datetime(moment), jobs, counted[0], counted[1]


def _copy_objects(store: ObjectStore, directory: Path, count: int, on_progress: OnProgress) -> list[str]:
    """Copy the objects of the refs, some at a time; return the keys of those that are not there, a thousand at most."""
    copies = LocalObjectStore(directory / OBJECTS, sync=False)
    missing: list[str] = []
    done = 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in batches(object_refs(directory)):
            for key in pool.map(partial(_copy, store, copies), batch):
                done += 1
                if key is not None and len(missing) < _MOST_MISSING:
                    missing.append(key)
            on_progress("objects", done, count)
    return missing


def _copy(store: ObjectStore, copies: LocalObjectStore, ref: ObjectRef) -> str | None:
    """Copy an object piece by piece; return its key if it is not there."""
    path = copies.path(ref.key)
    try:
        pieces = store.open_stream(ref)
    except ObjectMissing:
        return ref.key
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
    return None


def batches(values: Iterable[T]) -> Iterator[list[T]]:
    """Yield the values, some at a time."""
    remaining = iter(values)
    while batch := list(islice(remaining, _AT_ONCE)):
        yield batch
