"""The faults of the databases, of the connections to them, and of their schema."""

import signal
import time
from contextlib import suppress

from tests.chaos.faults.fault import Chaos, Nothing, NotUndone, fault

_UNAVAILABLE = 3  # a command's exit code while a service does not answer


@fault("postgres", weight=2)
def restart_postgres(chaos: Chaos) -> None:
    """PostgreSQL stops at once (``-m immediate``) and starts with crash recovery."""
    chaos.victim.signal(signal.SIGQUIT)
    chaos.wait(2, 3)


@fault("postgres", weight=2)
def cut_before_commit(chaos: Chaos) -> None:
    """Connections are dropped before their COMMIT arrives."""
    chaos.in_between("postgres", "cut_before_commit", chaos.random.randrange(1, 6), 1, 3)


@fault("postgres", weight=2)
def cut_after_commit(chaos: Chaos) -> None:
    """Connections are dropped after their COMMIT was done and before its reply."""
    chaos.in_between("postgres", "cut_after_commit", chaos.random.randrange(1, 6), 1, 3)


@fault("postgres")
def drop_connections(chaos: Chaos) -> None:
    """Every connection to PostgreSQL is dropped, and new ones are for a moment."""
    chaos.in_between("postgres", "refuse", None, 0.2, 2)


@fault("postgres")
def hang_postgres(chaos: Chaos) -> None:
    """Nothing passes between PostgreSQL and anybody; connections stay."""
    chaos.in_between("postgres", "stall", None, 1, 4)


@fault("sqlite")
def lock_sqlite(chaos: Chaos) -> None:
    """Another process holds SQLite's write lock."""
    import sqlite3

    connection = sqlite3.connect(chaos.stack.directory / "omni-jobs.sqlite", isolation_level=None, timeout=20)
    try:
        with suppress(sqlite3.OperationalError):
            connection.execute("BEGIN IMMEDIATE")
            chaos.wait(1, 4)
            connection.execute("ROLLBACK")
    finally:
        connection.close()


@fault("schema")
def migrate(chaos: Chaos) -> None:
    """A later build migrates the database, or takes it back, under all processes; it may be killed and run again."""
    migration = chaos.stack.migration()
    if chaos.random.random() < 0.5:
        first = migration.start()
        chaos.wait(0.5, 3)
        first.kill()
        first.wait()
    deadline = time.monotonic() + 120
    while (status := migration.run()) == _UNAVAILABLE and time.monotonic() < deadline:
        chaos.wait(0.5)
    if status == _UNAVAILABLE:
        raise Nothing("the database did not answer for long enough")
    if status != 0:
        raise NotUndone(f"a migration ended with {status}: {migration.said}")
    chaos.stack.is_later = not chaos.stack.is_later
    chaos.wait(2, 8)
