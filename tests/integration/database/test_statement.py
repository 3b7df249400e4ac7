"""Statements that the driver runs itself, on both databases, and their trouble with PostgreSQL's sessions."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, exc, insert, text

from omni_jobs.database.database import Database
from omni_jobs.database.statement import Statement, Statements, execute_pipelined, run_all
from omni_jobs.database.tables import WorkerRow
from omni_jobs.jobs.life import claim, transition
from omni_jobs.jobs.order import take_turns
from tests.services.postgres import as_owner, until_one_waits_for_a_lock

postgresql_only = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

FORGET = text("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")  # so that psycopg does not see it
PREPARED = "_pg3_"
PREPARED_NAMES = text("SELECT name FROM pg_prepared_statements")
PID = text("SELECT pg_backend_pid()")
END_SESSION = text("SELECT pg_terminate_backend(:pid)")


def of(sql: str) -> Statement:
    """A statement that both dialects have alike."""
    return Statement(lambda _: text(sql))


SLOTS = of("SELECT id, slots FROM workers ORDER BY id")
MORE_SLOTS = of("UPDATE workers SET slots = slots + 1 WHERE id = :worker RETURNING slots")
HOST = of("SELECT host FROM workers WHERE id = :worker")
SET_HOST = of("UPDATE workers SET host = :its_host WHERE id = :worker RETURNING slots")
LOCKED = of("SELECT slots FROM workers WHERE id = :worker FOR UPDATE")
WRONG_VALUE = of('SELECT 1 / (length(:value) - 41) AS "WRONG"')
WRONG = of("SELECT 1 / (length(:zero) - 1)")


@pytest.fixture
def worker(database: Database) -> str:
    row: dict[str, Any] = dict.fromkeys(
        ("pid", "slots", "slots_for_high", "started_at", "renewed_at", "lease_until"), 0
    )
    row |= dict.fromkeys(("slot", "pipeline", "stage", "host", "pipeline_version", "pipeline_digest"), "x")
    row |= {"loading": False, "heartbeat_s": 1.0}
    database.run(lambda tx: tx.execute(insert(WorkerRow).values(id="a", **row)))
    return "a"


def read(database: Database, statement: Statement = SLOTS, **parameters: Any) -> list[tuple[Any, ...]]:
    return database.read(lambda tx: statement.rows(tx, parameters))


def test_it_gives_its_rows(database: Database, worker: str) -> None:
    assert read(database) == [("a", 0)]
    assert database.run(lambda tx: SET_HOST.rows(tx, {"worker": worker, "its_host": "y"})) == [(0,)]
    assert database.run(lambda tx: HOST.rows(tx, {"worker": worker})) == [("y",)]
    assert database.run(lambda tx: MORE_SLOTS.rows(tx, {"worker": worker})) == [(1,)]
    assert database.run(lambda tx: MORE_SLOTS.rows(tx, {"worker": "nobody"})) == []
    assert read(database) == [("a", 1)]


@postgresql_only
def test_any_text_reaches_the_database_as_it_is(database: Database, worker: str) -> None:
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
    def reaches(host: str) -> None:
        these = {"worker": worker, "its_host": host}
        found = database.run(lambda tx: execute_pipelined(tx, [(SET_HOST, these), (HOST, these)]))
        assert found == [[(0,)], [(host,)]]

    reaches()


@pytest.mark.parametrize("host", ["'); DROP TABLE workers; --", "\\' OR 1=1", "$1 %s %(worker)s %%", "é漢😀"])
def test_statements_of_one_message_see_those_before(database: Database, worker: str, host: str) -> None:
    these = {"worker": worker, "its_host": host}
    for _ in range(2):  # the second finds all prepared
        found = database.run(lambda tx: execute_pipelined(tx, [(SET_HOST, these), (HOST, these)]))
        assert found == [[(0,)], [(host,)]]
    assert read(database, HOST, worker=worker) == [(host,)]


def test_none_is_no_message(database: Database) -> None:
    assert database.run(lambda tx: execute_pipelined(tx, [])) == []


def test_what_a_message_began_an_error_rolls_back(database: Database, worker: str) -> None:
    def spoiled(tx: Connection) -> None:
        execute_pipelined(tx, [(SET_HOST, {"worker": worker, "its_host": "y"})])
        raise LookupError

    with pytest.raises(LookupError):
        database.run(spoiled)
    assert read(database, HOST, worker=worker) == [("x",)]


@postgresql_only
def test_a_wrong_statement_in_a_message_keeps_nothing(database: Database, worker: str) -> None:
    def transaction(tx: Connection) -> None:
        calls = [(SET_HOST, {"worker": worker, "its_host": "y"}), (WRONG, {"zero": "0"})]
        execute_pipelined(tx, calls)

    with pytest.raises(exc.DataError, match="division by zero"):
        database.run(transaction)
    assert read(database, HOST, worker=worker) == [("x",)]
    assert database.run(lambda tx: execute_pipelined(tx, [(SLOTS, {})])) == [[("a", 0)]]


@postgresql_only
def test_a_statement_sees_what_the_one_before_it_waited_for(database: Database, worker: str) -> None:
    these = {"worker": worker, "its_host": "y"}
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as tx:
            SET_HOST.rows(tx, these)
            waiting = pool.submit(database.run, lambda tx: execute_pipelined(tx, [(LOCKED, these), (HOST, these)]))
            until_one_waits_for_a_lock(database)
        assert waiting.result() == [[(0,)], [("y",)]]


TURNS = Statements(take_turns.__file__)
INSERT_TURNS = TURNS.bulk("insert_turns_unless_there", "pipeline tenant")
SET_TURNS = TURNS.bulk("set_turns", "pipeline tenant high normal low")
LOW = of("SELECT tenant, low FROM turns ORDER BY tenant")


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_a_bulk_statement_runs_for_each_row_and_says_how_many_changed(database: Database, rows: int) -> None:
    tenants = [(f"t{n:02}", n) for n in range(rows)]
    inserted = [("echo", tenant) for tenant, _ in tenants]
    assert database.run(lambda tx: INSERT_TURNS.run(tx, inserted)) == rows
    assert database.run(lambda tx: INSERT_TURNS.run(tx, [*inserted, ("echo", "u")])) == 1
    values = [("echo", tenant, 1, 2, low) for tenant, low in tenants]
    assert database.run(lambda tx: SET_TURNS.run(tx, [*values, ("echo", "nobody", 1, 2, 3)])) == rows
    assert read(database, LOW) == [*tenants, ("u", 0)]


@pytest.mark.parametrize("rows", [1, 40])
def test_rows_that_are_not_there_undo_what_is_to_be_exact(database: Database, rows: int) -> None:
    database.run(lambda tx: INSERT_TURNS.run(tx, [("echo", "a")]))
    there = [("echo", "a", 1, 2, 3)]
    gone = [("echo", f"gone-{n}", 1, 2, 3) for n in range(rows)]
    with pytest.raises(RuntimeError, match="rows have changed"):
        database.run(lambda tx: run_all(tx, [(SET_TURNS, there + gone)], exact=1))
    assert read(database, LOW) == [("a", 0)]
    database.run(lambda tx: run_all(tx, [(SET_TURNS, there), (SET_TURNS, [])], exact=2))
    assert read(database, LOW) == [("a", 3)]
    database.run(lambda tx: run_all(tx, [(SET_TURNS, gone)], exact=0))


@pytest.mark.parametrize(
    ("module", "name"),
    [(claim, "claim_next"), (claim, "suspect"), (transition, "set_job"), (transition, "stage_runs_of_jobs")],
)
def test_a_text_that_another_names_is_part_of_it(database: Database, module: ModuleType, name: str) -> None:
    found = Statements(str(module.__file__))[name].compiled(database._engine.dialect).text
    assert not any(each in found for each in ("{", "}", "--"))


def test_an_unknown_name_is_an_error(database: Database) -> None:
    with pytest.raises(KeyError):
        read(database, TURNS["no such"])


@postgresql_only
def test_a_lost_session_is_a_new_one_with_its_own_statements(database: Database, worker: str) -> None:
    """Relies on SQLAlchemy's ``Connection.info`` lasting as long as the session."""
    lost: list[int] = []

    def transaction(tx: Connection) -> Any:
        if not lost:
            lost.append(tx.execute(PID).scalar_one())
            with database.begin() as other:
                other.execute(END_SESSION, {"pid": lost[0]})
        return execute_pipelined(tx, [(LOCKED, {"worker": worker}), (HOST, {"worker": worker})])

    assert database.run(lambda tx: execute_pipelined(tx, [(HOST, {"worker": worker})])) == [[("x",)]]
    assert database.run(transaction) == [[(0,)], [("x",)]]


@postgresql_only
def test_behind_a_pooler_nothing_is_prepared(database: Database, worker: str, caplog: pytest.LogCaptureFixture) -> None:
    """Another session than the one that prepared them: a pooler's, between one transaction and the next."""
    these = {"worker": worker, "its_host": "y"}
    calls = [(LOCKED, these), (SET_HOST, these)]
    database.run(lambda tx: execute_pipelined(tx, calls))
    database.run(lambda tx: tx.execute(FORGET))
    with caplog.at_level(logging.WARNING):
        for host in ("z", "w"):
            these["its_host"] = host
            assert database.run(lambda tx: execute_pipelined(tx, calls)) == [[(0,)], [(0,)]]
            assert read(database, HOST, worker=worker) == [(host,)]
    assert [record.message for record in caplog.records if "pooler" in record.message] == [
        "a pooler stands before the database: nothing is prepared"
    ]

    def spoiled(tx: Connection) -> None:
        execute_pipelined(tx, calls)
        raise LookupError

    these["its_host"] = "not kept"
    with pytest.raises(LookupError):
        database.run(spoiled)
    assert read(database, HOST, worker=worker) == [("w",)]


@postgresql_only
def test_behind_a_pooler_psycopg_prepares_nothing_either(database: Database, worker: str) -> None:
    """Relies on psycopg preparing what it has run five times."""
    for _ in range(8):
        assert read(database) == [(worker, 0)]
    assert PREPARED in database.read(lambda tx: tx.execute(PREPARED_NAMES).scalars().all())[0]
    database.run(lambda tx: tx.execute(FORGET))
    for _ in range(8):
        assert read(database) == [(worker, 0)]
    assert database.read(lambda tx: tx.execute(PREPARED_NAMES).scalars().all()) == []


@postgresql_only
def test_a_session_that_is_not_the_one_it_says_is_a_poolers(
    database: Database, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler names itself where a client asks whom to cancel; the statements of its sessions are many clients'."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 1)
    these = {"worker": worker, "its_host": "y"}
    other = Database(database._engine.url.render_as_string(hide_password=False))
    for _ in range(8):
        assert other.run(lambda tx: execute_pipelined(tx, [(SET_HOST, these), (HOST, these)])) == [[(0,)], [("y",)]]
    assert other.read(lambda tx: tx.execute(PREPARED_NAMES).scalars().all()) == []
    other.close()


@postgresql_only
def test_a_check_leaves_what_its_session_has_prepared(database: Database, worker: str) -> None:
    assert read(database) == [(worker, 0)]
    prepared = set(database.read(lambda tx: tx.execute(PREPARED_NAMES).scalars().all()))
    assert prepared
    database.check()
    assert set(database.read(lambda tx: tx.execute(PREPARED_NAMES).scalars().all())) >= prepared


@postgresql_only
def test_a_rollback_is_no_pooler(database: Database, worker: str, caplog: pytest.LogCaptureFixture) -> None:
    """Relies on psycopg deallocating all that is prepared with each."""
    these = {"worker": worker, "its_host": "y"}
    calls = [(SET_HOST, these), (HOST, these)]

    def spoiled(tx: Connection) -> None:
        execute_pipelined(tx, calls)
        raise LookupError

    for _ in range(8):
        database.run(lambda tx: execute_pipelined(tx, calls))
    with caplog.at_level(logging.WARNING):
        with pytest.raises(LookupError):
            database.run(spoiled)
        for _ in range(2):
            database.run(lambda tx: execute_pipelined(tx, calls))
    assert caplog.records == []
    assert database.read(lambda tx: tx.execute(PREPARED_NAMES).scalars().all()) != []


@postgresql_only
@pytest.mark.parametrize(("logged", "hidden"), [("all", "log_parameter_max_length = 0"), ("none", None)])
def test_postgresqls_log_shows_statements_without_their_values(
    database: Database, worker: str, logged: str, hidden: str | None
) -> None:
    url = database._engine.url
    with psycopg.connect(as_owner(url.render_as_string(hide_password=False)), autocommit=True) as tx:
        for setting in (f"log_statement = '{logged}'", hidden):
            if setting is not None:
                tx.execute(f"ALTER DATABASE {url.database} SET {setting}")  # type: ignore[call-overload]
        log = Path(str(tx.execute("SHOW data_directory").fetchall()[0][0])) / "server.log"
    before = len(log.read_bytes())
    secret = f"a-prompt-{uuid4().hex}"
    these = {"worker": worker, "its_host": secret}
    other = Database(url.render_as_string(hide_password=False))
    for _ in range(8):  # prepared, and not yet
        other.run(lambda tx: SET_HOST.rows(tx, these))
        other.run(lambda tx: execute_pipelined(tx, [(SET_HOST, these), (HOST, these)]))
        with pytest.raises(exc.DataError):
            other.run(lambda tx: execute_pipelined(tx, [(HOST, these), (WRONG_VALUE, {"value": secret})]))
    other.close()
    found = log.read_bytes()[before:].decode()
    assert "WRONG" in found
    assert (found.count("UPDATE workers SET host") >= 16) == (logged == "all")
    assert secret not in found
