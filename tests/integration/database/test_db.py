"""Transactions through trouble, on both databases."""

import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, Connection, exc, select, text

from omni_jobs.database import sqlite
from omni_jobs.database.clock import now
from omni_jobs.database.database import Database
from omni_jobs.errors import ConfigError, DatabaseUnavailable
from tests.services.postgres import by_owner

postgresql_only = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
sqlite_only = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

INSERT_WORKER = text(
    "INSERT INTO workers (id, slot, pipeline, stage, host, pid, slots, started_at, renewed_at, lease_until,"
    " heartbeat_s, slots_for_high, loading, pipeline_version, pipeline_digest)"
    " VALUES (:id, :id, 'p', 't', 'h', 1, 0, 0, 0, 0, 1, 0, false, '1', 'd')"
)
MORE_SLOTS = text("UPDATE workers SET slots = slots + 1 WHERE id = :id")
SLOTS = text("SELECT slots FROM workers ORDER BY id")


def test_a_connection_in_use_is_closed_when_it_comes_back(database_url: str) -> None:
    database = Database(database_url)
    with database.begin() as tx:
        connection = tx.connection.driver_connection
        database.close()
        assert tx.execute(text("SELECT 1")).scalar_one() == 1
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError)):
        connection.execute("SELECT 1")  # type: ignore[union-attr]


def test_an_error_rolls_back(database: Database) -> None:
    def spoiled(tx: Connection) -> None:
        tx.execute(INSERT_WORKER, {"id": "a"})
        raise LookupError

    with pytest.raises(LookupError):
        database.run(spoiled)
    assert database.read(lambda tx: tx.execute(SLOTS).all()) == []


def test_a_lasting_error_is_not_tried_again(database: Database) -> None:
    calls = []

    def wrong(tx: Connection) -> None:
        calls.append(1)
        tx.execute(text("SELECT nothing FROM workers"))

    with pytest.raises(exc.DBAPIError):
        database.run(wrong)
    assert len(calls) == 1


def test_the_clock_is_the_databases_and_runs(database: Database) -> None:
    first, second = (database.read(lambda tx: tx.execute(select(now())).scalar_one()) for _ in range(2))
    assert 1.7e9 < first <= second < first + 60


def test_readers_see_one_state(database: Database) -> None:
    database.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "a"}))
    rival = Database(database._engine.url.render_as_string(hide_password=False))

    def read_twice(tx: Connection) -> tuple[int, int]:
        before = tx.execute(SLOTS).scalar_one()
        rival.run(lambda other: other.execute(MORE_SLOTS, {"id": "a"}))
        return before, tx.execute(SLOTS).scalar_one()

    assert database.read(read_twice) == (0, 0)
    assert database.read(lambda tx: tx.execute(SLOTS).scalar_one()) == 1
    rival.close()


def test_writers_take_turns(database: Database) -> None:
    database.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "a"}))

    def add(tx: Connection) -> None:
        found = tx.execute(text("SELECT slots FROM workers" + lock)).scalar_one()
        tx.execute(text("UPDATE workers SET slots = :n"), {"n": found + 1})

    lock = " FOR UPDATE" if database.dialect == "postgresql" else ""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: database.run(add), range(40)))
    assert database.read(lambda tx: tx.execute(SLOTS).scalar_one()) == 40


@postgresql_only
def test_a_lost_connection_is_tried_again(database: Database) -> None:
    killed = []

    def transaction(tx: Connection) -> None:
        tx.execute(INSERT_WORKER, {"id": "a"})
        if not killed:
            killed.append(tx.execute(text("SELECT pg_backend_pid()")).scalar_one())
            with database.begin() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": killed[0]})
            tx.execute(SLOTS)

    database.run(transaction)
    assert database.read(lambda tx: tx.execute(SLOTS).all()) == [(0,)]


@postgresql_only
def test_after_a_failover_a_new_session_finds_the_primary(database_url: str) -> None:
    """The sessions there are lead to what is a replica now (25006): the same transaction goes on in another."""
    database = Database(database_url, connections=1)
    database.run(lambda tx: tx.execute(text("SET default_transaction_read_only = on")))
    database.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "a"}))
    assert database.read(lambda tx: tx.execute(SLOTS).all()) == [(0,)]
    database.close()


@postgresql_only
def test_a_database_that_stays_read_only_is_unavailable(database: Database, database_url: str) -> None:
    name = database_url.rpartition("/")[2]
    read_only = Database(database_url, retry_for_s=0.3)
    by_owner(database, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with pytest.raises(DatabaseUnavailable, match="read-only transaction"):
        read_only.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "a"}))
    with pytest.raises(DatabaseUnavailable, match="takes no writes"):
        read_only.check()
    writable = "SET default_transaction_read_only = off"
    by_owner(database, writable, f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    read_only.check()
    read_only.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "a"}))
    read_only.close()


@sqlite_only
def test_a_file_that_is_read_only_is_unavailable_and_opened_anew(database_url: str) -> None:
    database = Database(database_url, connections=1)

    def set_read_only(tx: Connection) -> None:
        tx.exec_driver_sql("PRAGMA query_only = ON")

    database.read(set_read_only)
    with pytest.raises(DatabaseUnavailable, match="readonly"):
        database.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "a"}))
    database.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "a"}))
    database.close()


@sqlite_only
def test_a_file_that_is_no_database_any_more_is_unavailable(database: Database, database_url: str) -> None:
    database.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "a"}))
    file = Path(database_url.removeprefix("sqlite:///"))
    database.close()
    data = file.read_bytes()
    file.write_bytes(b"x" * len(data))
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        database.run(lambda tx: tx.execute(MORE_SLOTS, {"id": "a"}))
    file.write_bytes(data)
    database.run(lambda tx: tx.execute(MORE_SLOTS, {"id": "a"}))


def file_of(database_url: str) -> Path:
    return Path(database_url.removeprefix("sqlite:///"))


def insert(database: Database, name: str) -> None:
    database.run(lambda tx: tx.execute(INSERT_WORKER, {"id": name}))


def unavailable(database: Database, said: str) -> None:
    """To every one who asks."""
    for ask in (
        lambda: insert(database, "lost"),
        lambda: database.read(lambda tx: tx.execute(SLOTS).all()),
        database.check,
        database.check_writes,
    ):
        with pytest.raises(DatabaseUnavailable, match=said):
            ask()


@sqlite_only
def test_a_file_that_was_removed_takes_nothing_and_is_not_made_anew(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    file = file_of(database_url)
    insert(database, "a")
    names = ("", "-wal", "-shm")
    for name in names:
        Path(f"{file}{name}").rename(tmp_path / f"elsewhere{name}")
    unavailable(database, "not there: put it back, or run omni-jobs migrate for a new, empty one")
    newcomer = Database(database_url)
    unavailable(newcomer, "not there")
    assert not file.exists()
    for name in names:
        (tmp_path / f"elsewhere{name}").rename(f"{file}{name}")
    for each in (database, newcomer):
        each.check()
        assert len(each.read(lambda tx: tx.execute(SLOTS).all())) == 1
    insert(database, "b")
    newcomer.close()


@sqlite_only
def test_what_is_committed_after_the_file_was_removed_does_not_count(database: Database, database_url: str) -> None:
    """It goes in the middle of the transaction."""

    def transaction(tx: Connection) -> None:
        tx.execute(INSERT_WORKER, {"id": "a"})
        file_of(database_url).unlink()

    with pytest.raises(DatabaseUnavailable, match="not there"):
        database.run(transaction)


@sqlite_only
def test_a_file_that_was_replaced_is_opened_anew(database: Database, database_url: str, tmp_path: Path) -> None:
    file = file_of(database_url)
    insert(database, "a")
    insert(database, "b")
    restored = Database(f"sqlite:///{tmp_path / 'backup.sqlite'}")
    restored.migrate()
    insert(restored, "a")
    restored.close()
    for name in ("-wal", "-shm"):
        Path(f"{file}{name}").unlink()
    (tmp_path / "backup.sqlite").replace(file)
    with pytest.raises(DatabaseUnavailable, match="was replaced"):
        insert(database, "c")
    insert(database, "d")
    assert len(database.read(lambda tx: tx.execute(SLOTS).all())) == 2
    with closing(sqlite3.connect(file)) as connection:
        assert [found for (found,) in connection.execute("SELECT id FROM workers")] == ["a", "d"]


@sqlite_only
@pytest.mark.parametrize("name", ["-wal", "-shm"])
def test_a_log_that_was_removed_takes_nothing_and_is_saved_by_the_last_that_ends(
    database: Database, database_url: str, name: str
) -> None:
    file = file_of(database_url)
    insert(database, "a")
    Path(f"{file}{name}").unlink()
    unavailable(database, "stop all processes of omni-jobs")
    database.close()
    again = Database(database_url)
    again.check()
    assert len(again.read(lambda tx: tx.execute(SLOTS).all())) == 1
    again.close()


def test_names_of_files_may_hold_what_a_uri_may_not(tmp_path: Path) -> None:
    file = tmp_path / "100%25 größer#;=é" / "x y.sqlite"
    database = Database(URL.create("sqlite", database=str(file)).render_as_string())
    database.migrate()
    database.check()
    database.close()
    assert file.exists()


def test_a_schema_that_was_dropped_is_unavailable(database: Database) -> None:
    """Some or all of it; nothing that asks is told of a bug."""
    insert(database, "a")
    by_owner(database, "DROP TABLE attempt_errors")
    with pytest.raises(DatabaseUnavailable, match="lacks the table attempt_errors"):
        database.check()
    with pytest.raises(DatabaseUnavailable, match="attempt_errors"):
        database.read(lambda tx: tx.execute(text("SELECT * FROM attempt_errors")))
    by_owner(database, "DROP TABLE oldest_builds")
    by_owner(database, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseUnavailable, match=r"schema is 9999, .* a newer version made it"):
        database.check()
    by_owner(database, "DROP TABLE alembic_version")
    with pytest.raises(DatabaseUnavailable, match="schema is empty"):
        database.check()


@postgresql_only
def test_a_statement_that_hangs_is_unavailable(database: Database) -> None:
    def hang(tx: Connection) -> None:
        assert tx.execute(text("SHOW statement_timeout")).scalar_one() == "1min"
        tx.execute(text("SET LOCAL statement_timeout = '100ms'"))
        tx.execute(text("SELECT pg_sleep(30)"))

    with pytest.raises(DatabaseUnavailable, match="statement timeout"):
        database.run(hang)


@postgresql_only
def test_a_deadlock_is_tried_again(database: Database) -> None:
    for worker in "ab":
        database.run(lambda tx, worker=worker: tx.execute(INSERT_WORKER, {"id": worker}))
    both = threading.Barrier(2)
    met = threading.local()

    def crosswise(order: str) -> None:
        def transaction(tx: Connection) -> None:
            tx.execute(MORE_SLOTS, {"id": order[0]})
            if not getattr(met, "done", False):
                met.done = True
                both.wait()
            tx.execute(MORE_SLOTS, {"id": order[1]})

        database.run(transaction)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(crosswise, ["ab", "ba"]))
    assert database.read(lambda tx: tx.execute(SLOTS).all()) == [(2,), (2,)]


@sqlite_only
def test_a_locked_file_is_waited_for(database: Database) -> None:
    locked, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with database.begin() as tx:
            tx.execute(INSERT_WORKER, {"id": "a"})
            locked.set()
            may_go.wait(10)

    with ThreadPoolExecutor(2) as pool:
        holder = pool.submit(hold)
        locked.wait(10)
        writer = pool.submit(database.run, lambda tx: tx.execute(MORE_SLOTS, {"id": "a"}))
        assert database.read(lambda tx: tx.execute(SLOTS).all()) == [], "readers do not wait"
        may_go.set()
        holder.result()
        writer.result()
    assert database.read(lambda tx: tx.execute(SLOTS).scalar_one()) == 1


@sqlite_only
def test_a_file_that_stays_locked_is_unavailable(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LOCK_S", 0.2)
    other = Database(database_url, retry_for_s=0.1)
    with database.begin() as tx:
        tx.execute(INSERT_WORKER, {"id": "a"})
        with pytest.raises(DatabaseUnavailable, match="locked"):
            other.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "b"}))
    other.run(lambda tx: tx.execute(INSERT_WORKER, {"id": "b"}))
    busy_timeout = other.read(lambda tx: tx.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
    other.close()
    assert busy_timeout == 200


def test_a_database_that_stays_away_is_unavailable() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        database = Database(f"postgresql://x@127.0.0.1:{listener.getsockname()[1]}/x", retry_for_s=0.1)
        with pytest.raises(DatabaseUnavailable):
            database.run(lambda tx: None)
        with pytest.raises(DatabaseUnavailable):
            database.check()
        database.close()


@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:"])
def test_urls_that_cannot_work_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Database(url)
    assert caught.value.field == "database_url"


def test_sqlite_is_set_up_for_several_processes(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/x.sqlite")
    database.migrate()
    names = {
        "journal_mode": "wal",
        "synchronous": 1,
        "foreign_keys": 1,
        "busy_timeout": 10_000,
        "wal_autocheckpoint": 4_000,
    }
    found = database.read(lambda tx: {name: tx.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names})
    database.close()
    assert found == names


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "nonsense",
            "postgresql://u:secret@[::bad/db",
            "postgresql://u:secret@h:port/db",
            "mysql://u:secret@h/db",
        ),
        *("postgresql://u:secret@h:99999/db", "postgresql://u:secret@-h-/db", "postgresql://u@h/db?secret=1"),
        *("sqlite://secret/x", "postgresql://u:secret@h/db?host=a&port=b"),
    ],
)
def test_a_url_that_is_none_is_a_config_error_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Database(url)
    assert refused.value.field == "database_url"
    assert "secret" not in str(refused.value)
