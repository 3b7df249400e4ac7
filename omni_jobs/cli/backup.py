"""The commands that write a backup of a running system, and restore one into an empty place."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from omni_jobs.cli import options
from omni_jobs.cli.exits import notice, raised_signals
from omni_jobs.cli.servers import settings_for_one_user
from omni_jobs.cli.terminal import console, say, say_json

if TYPE_CHECKING:
    from omni_jobs.backup.manifest import OnProgress


def backup(
    directory: options.NewBackupArgument, objects: options.ObjectsOption = False, as_json: options.JsonOption = False
) -> None:
    """Write a backup of the database, and with --objects of the objects, while the system goes on.

    The database is that of one moment. Until the objects that it refers to are copied, no rescuer deletes one. Without
    --objects only their keys, sizes and digests are listed, for stores that keep versions or are copied otherwise.

    It is run where the servers run, with their settings. For PostgreSQL it needs pg_dump.

    \b
    Examples:
      omni-jobs backup /backups/2026-01-05 --objects
      OMNI_JOBS_DATABASE_URL=postgresql://… OMNI_JOBS_STORAGE_URL=s3://… omni-jobs backup monday --json
    """
    from sqlalchemy import make_url

    from omni_jobs.backup import make_backup
    from omni_jobs.database.database import Database
    from omni_jobs.storage import open_store

    settings = settings_for_one_user()
    url = settings.resolved_database_url
    with closing(Database(url)) as database, _shown() as on_progress, raised_signals():
        database.check()
        made = make_backup(
            database, open_store(settings), make_url(url), directory, with_objects=objects, on_progress=on_progress
        )
    if made.missing:
        notice(f"{len(made.missing)} objects are not in the store, such as {made.missing[0]}: {directory}/backup.json")
    if as_json:
        say_json(made.model_dump_json(indent=2))
        return
    what = f"{made.objects - len(made.missing)} objects" if objects else f"the list of {made.objects} objects"
    say(f"{directory}: {made.jobs} jobs and {what}, as of {made.made_at:%Y-%m-%d %H:%M:%S} UTC")


def restore(directory: options.BackupArgument, as_json: options.JsonOption = False) -> None:
    """Restore a backup into an empty database, and its objects, if it has them, into an empty object store.

    Run it before migrate and before anything else is started. If it was interrupted, run it again. A backup of an older
    version needs omni-jobs migrate afterwards. For PostgreSQL it needs pg_restore.

    \b
    Example:
      omni-jobs restore /backups/2026-01-05
    """
    from sqlalchemy import make_url

    from omni_jobs.backup import restore_backup
    from omni_jobs.database.database import REVISION, Database
    from omni_jobs.storage import open_store

    settings = settings_for_one_user()
    url = settings.resolved_database_url
    with closing(Database(url)) as database, _shown() as on_progress, raised_signals():
        done = restore_backup(database, open_store(settings), make_url(url), directory, on_progress=on_progress)
    if done.missing:
        notice(f"{len(done.missing)} objects are missing, such as {done.missing[0]}: jobs that need one will fail")
    if done.manifest.revision != REVISION:
        notice(f"its schema is {done.manifest.revision}, this version needs {REVISION}: run omni-jobs migrate")
    if as_json:
        said = {"jobs": done.manifest.jobs, "put": done.put, "missing": done.missing, "schema": done.manifest.revision}
        say_json(json.dumps(said, indent=2))
        return
    say(f"{done.manifest.jobs} jobs and {done.put} objects, as of {done.manifest.made_at:%Y-%m-%d %H:%M:%S} UTC")


@contextmanager
def _shown() -> Iterator[OnProgress]:
    """A context manager that gives a function which shows on stderr how far a backup or a restore is."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        tasks = {name: bars.add_task(name, total=None) for name in ("database", "objects")}
        yield lambda name, done, total: bars.update(tasks[name], completed=done, total=total)
