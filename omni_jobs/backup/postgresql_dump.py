"""PostgreSQL's database as a backup: a dump by ``pg_dump``, and back by ``pg_restore`` in one transaction."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, text

from omni_jobs.backup.manifest import OnProgress
from omni_jobs.errors import ConfigError, DatabaseUnavailable

FILE: Final = "database.dump"
_LOOK_S: Final = 0.2
_MOST_SAID: Final = 500  # characters of what a program says


def dump(tx: Connection, url: URL, to: Path, on_progress: OnProgress, meanwhile: Callable[[], object]) -> None:
    """Write what the transaction sees as a dump; call ``meanwhile``, which may use the transaction.

    Raises ConfigError without ``pg_dump``, and DatabaseUnavailable when it fails.
    """
    tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
    tx.execute(text("SET LOCAL statement_timeout = 0"))
    snapshot = tx.execute(text("SELECT pg_export_snapshot()")).scalar_one()
    arguments = ["--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot}", f"--file={to}"]
    with _started("pg_dump", arguments, url) as process:
        meanwhile()
        _wait(process, lambda: on_progress("database", to.stat().st_size if to.exists() else 0, None))


def load(source: Path, url: URL, on_progress: OnProgress) -> None:
    """Fill an empty database from a dump, in one transaction: whole or not at all.

    Raises ConfigError without ``pg_restore``, and DatabaseUnavailable when it fails.
    """
    arguments = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges", str(source)]
    with _started("pg_restore", arguments, url) as process:
        _wait(process, lambda: on_progress("database", 0, None))


class _started:
    """A context manager for a program of PostgreSQL; it is killed if its block fails."""

    def __init__(self, program: str, arguments: Sequence[str], url: URL) -> None:
        self._command = [program, f"--dbname={_conninfo(url)}", *arguments]
        # A password on a command line is seen by all users of the host.
        self._environment = dict(os.environ) | ({"PGPASSWORD": url.password} if url.password else {})

    def __enter__(self) -> "subprocess.Popen[str]":
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except FileNotFoundError:
            raise ConfigError(
                f"{self._command[0]} is not here: install PostgreSQL's programs, of the server's version or newer "
                "(Debian: apt-get install postgresql-client), or run them where the server runs, as "
                "docs/operations/backup.md does for docker compose"
            ) from None
        return self._process

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _wait(process: "subprocess.Popen[str]", look: Callable[[], object]) -> None:
    while True:
        try:
            _, said = process.communicate(timeout=_LOOK_S)
            break
        except subprocess.TimeoutExpired:
            look()
    if process.returncode:
        because = " ".join(said.split())[:_MOST_SAID]
        raise DatabaseUnavailable(f"PostgreSQL's program ended with {process.returncode}", because=because)
    look()


def _conninfo(url: URL) -> str:
    """Return where a URL leads, without its password."""
    from psycopg.conninfo import make_conninfo

    places = {"host": url.host, "port": url.port, "user": url.username, "dbname": url.database}
    options = {name: value for name, value in url.query.items() if isinstance(value, str)}
    return make_conninfo("", **{name: value for name, value in places.items() if value is not None}, **options)
