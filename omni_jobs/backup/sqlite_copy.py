"""SQLite's database as a backup: a copy of its file by the online backup, while others go on to write."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection

from omni_jobs.backup.manifest import OnProgress
from omni_jobs.errors import Conflict, DatabaseUnavailable
from omni_jobs.files import sync_directory

FILE: Final = "database.sqlite"
_PAGES_AT_ONCE: Final = 4000


def dump(tx: Connection, to: Path, on_progress: OnProgress) -> None:
    """Write what the transaction sees as a file, which needs no other beside it. Raises DatabaseUnavailable."""
    raw: Any = tx.connection.dbapi_connection
    raw.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from here on the transaction sees one state
    to.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(to)) as copy:
            raw.backup(
                copy,
                pages=_PAGES_AT_ONCE,
                progress=lambda _, left, total: on_progress("database", total - left, total),
            )
            copy.execute("PRAGMA journal_mode=DELETE")  # without a log beside it
    except sqlite3.OperationalError as error:
        raise DatabaseUnavailable("the database's copy could not be written", because=str(error)) from error


def load(source: Path, to: Path, on_progress: OnProgress) -> None:
    """Put a copy where a database is to be, whole or not at all. Raises DatabaseUnavailable, and Conflict if one is."""
    to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = to.with_name(f".{to.name}.restored")
    partial.unlink(missing_ok=True)
    try:
        name = f"file:{quote(os.fsencode(source))}?mode=ro"
        with closing(sqlite3.connect(name, uri=True)) as copy, closing(sqlite3.connect(partial)) as new:
            copy.backup(
                new, pages=_PAGES_AT_ONCE, progress=lambda _, left, total: on_progress("database", total - left, total)
            )
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.link(partial, to)  # unlike a rename it replaces nothing
    except sqlite3.OperationalError as error:
        raise DatabaseUnavailable("the database's file could not be written", because=str(error)) from error
    except FileExistsError:
        raise Conflict(f"{to} is there already: restore into an empty place") from None
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(to.parent)
