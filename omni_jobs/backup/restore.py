"""``restore_backup``: fills an empty database and an empty object store from a backup."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from sqlalchemy import URL, delete

from omni_jobs.backup import postgresql_dump, sqlite_copy
from omni_jobs.backup.make import batches
from omni_jobs.backup.manifest import OBJECT_REFS, OBJECTS, BackupManifest, OnProgress, digest_of, object_refs
from omni_jobs.database.database import REVISION, Database
from omni_jobs.database.seen_tables import DeleteHoldRow
from omni_jobs.errors import Conflict, ObjectMissing
from omni_jobs.storage import LocalObjectStore, ObjectRef, ObjectStore
from omni_jobs.storage.keys import JOBS

_THREADS: Final = 8
_MOST_MISSING: Final = 1000  # keys


class Restored(NamedTuple):
    """What a restore has done."""

    manifest: BackupManifest
    put: int  # objects; those that an interrupted restore had put before are left out
    missing: list[str]  # keys of objects that the database refers to and the store lacks


def restore_backup(
    database: Database, store: ObjectStore, url: URL, directory: Path, *, on_progress: OnProgress = lambda *_: None
) -> Restored:
    """Put a backup's objects into the store, then its database in the place of an empty one.

    The database comes last and whole, so that one that was interrupted is run again as it was. Raises NotFound without
    a backup; Conflict if it is damaged, of another database or of a newer build, or if there is something already where
    it belongs; ConfigError without PostgreSQL's programs; DatabaseUnavailable, StorageError and OSError.
    """
    manifest = BackupManifest.read(directory)
    _check(manifest, database, directory)
    has = {stored.key: stored.size for stored in store.list(f"{JOBS}/")}
    if manifest.has_objects:
        copies = LocalObjectStore(directory / OBJECTS, sync=False)
        others = (key for key in has if not copies.path(key).is_file())
        if (other := next(others, None)) is not None:
            raise Conflict(f"the object store is not empty, it has {other}: restore into an empty one")
        put, missing = _put_objects(copies, store, has, directory, manifest.objects, on_progress)
    else:
        put = 0
        missing = [ref.key for ref in object_refs(directory) if has.get(ref.key) != ref.size]
    source = directory / manifest.database_file
    if manifest.database == "sqlite":
        sqlite_copy.load(source, Path(str(url.database)).absolute(), on_progress)
    else:
        postgresql_dump.load(source, url, on_progress)
    database.run(lambda tx: tx.execute(delete(DeleteHoldRow)))  # that of the backup itself
    return Restored(manifest, put, missing[:_MOST_MISSING])


def _check(manifest: BackupManifest, database: Database, directory: Path) -> None:
    if manifest.database != database.dialect:
        raise Conflict(f"it is a backup of {manifest.database}, and OMNI_JOBS_DATABASE_URL leads to {database.dialect}")
    if manifest.revision > REVISION:
        raise Conflict(
            f"it was made by omni-jobs {manifest.build}, whose schema {manifest.revision} this version does not know: "
            "restore it with that version or a newer one"
        )
    if not database.is_empty():
        raise Conflict("the database is not empty: restore into an empty one, before omni-jobs migrate")
    if digest_of(directory / manifest.database_file) != manifest.database_digest:
        raise Conflict(f"{directory / manifest.database_file} is damaged: its digest is not that of the manifest")
    listed = sum(1 for _ in object_refs(directory))
    if listed != manifest.objects:
        raise Conflict(f"{directory / OBJECT_REFS} is damaged: it lists {listed:,} of {manifest.objects:,} objects")


def _put_objects(
    copies: LocalObjectStore,
    store: ObjectStore,
    has: dict[str, int],
    directory: Path,
    count: int,
    on_progress: OnProgress,
) -> tuple[int, list[str]]:
    missing: list[str] = []
    done = put = 0
    with ThreadPoolExecutor(_THREADS) as pool:
        for batch in batches(object_refs(directory)):
            wanted = [ref for ref in batch if has.get(ref.key) != ref.size]
            for key in pool.map(partial(_put, copies, store), wanted):
                if key is None:
                    put += 1
                elif len(missing) < _MOST_MISSING:
                    missing.append(key)
            done += len(batch)
            on_progress("objects", done, count)
    return put, missing


def _put(copies: LocalObjectStore, store: ObjectStore, ref: ObjectRef) -> str | None:
    """Put an object, whose file is mapped and not read into memory; return its key if the backup lacks it."""
    try:
        store.put(ref.key, [copies.read(ref, max_bytes=ref.size)])
    except ObjectMissing:
        return ref.key
    return None
