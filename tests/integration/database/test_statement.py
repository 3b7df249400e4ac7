"""Statements that the driver runs itself, on both databases, and their trouble with PostgreSQL's sessions."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, Text, bindparam, exc, insert, literal_column, select, text, update

from omni_jobs.database.bulk_statement import BulkStatement, run_all
from omni_jobs.database.database import Database
from omni_jobs.database.statement import Statement, execute_pipelined
from omni_jobs.database.tables import WorkerRow
from tests.services.postgres import until_one_waits_for_a_lock

postgresql_only = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

FORGET = text("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")  # so that psycopg does not see it
PREPARED = "_pg3_"
PREPARED_NAMES = text("SELECT name FROM pg_prepared_statements")
PID = text("SELECT pg_backend_pid()")
END_SESSION = text("SELECT pg_terminate_backend(:pid)")
SLOTS = Statement(select(WorkerRow.id, WorkerRow.slots).order_by(WorkerRow.id))
MORE_SLOTS = Statement(
    update(WorkerRow).where(WorkerRow.id == bindparam("worker")).values(slots=WorkerRow.slots + literal_column("1"))
)
HOST = Statement(select(WorkerRow.host).where(WorkerRow.id == bindparam("worker")))
SET_HOST = Statement(
    update(WorkerRow)
    .where(WorkerRow.id == bindparam("worker"))
    .values(host=bindparam("its_host", type_=Text))
    .returning(WorkerRow.slots)
)
LOCKED = Statement(select(WorkerRow.slots).where(WorkerRow.id == bindparam("worker")).with_for_update())


@pytest.fixture
def worker(database: Database) -> str:
    row: dict[str, Any] = dict.fromkeys(("pid", "slots", "started_at", "renewed_at", "lease_until"), 0)
    row |= dict.fromkeys(("slot", "pipeline", "stage", "host"), "x")
    database.run(lambda tx: tx.execute(insert(WorkerRow).values(id="a", **row)))
    return "a"


def read(database: Database, statement: Statement = SLOTS, **parameters: Any) -> list[tuple[Any, ...]]:
    return database.read(lambda tx: statement.rows(tx, parameters))


def test_it_gives_its_rows_or_how_many_it_changed(database: Database, worker: str) -> None:
    assert read(database) == [("a", 0)]
    assert database.run(lambda tx: SET_HOST.rows(tx, {"worker": worker, "its_host": "y"})) == [(0,)]
    assert database.run_pipelined(lambda tx: HOST.rows(tx, {"worker": worker})) == [("y",)]
    assert database.run(lambda tx: MORE_SLOTS.run(tx, {"worker": worker})) == 1
    assert database.run(lambda tx: MORE_SLOTS.run(tx, {"worker": "nobody"})) == 0
    assert read(database) == [("a", 1)]


@postgresql_only
def test_any_text_reaches_the_database_as_it_is(database: Database, worker: str) -> None:
    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
    def reaches(host: str) -> None:
        these = {"worker": worker, "its_host": host}
        found = database.run_pipelined(
            lambda tx: execute_pipelined(tx, [(SET_HOST, these), (HOST, these)], commit=True)
        )
        assert found == [[(0,)], [(host,)]]

    reaches()


@pytest.mark.parametrize("host", ["'); DROP TABLE workers; --", "\\' OR 1=1", "$1 %s %(worker)s %%", "é漢😀"])
@pytest.mark.parametrize("run", [Database.run, Database.run_pipelined])
def test_statements_of_one_message_see_those_before(
    database: Database, worker: str, host: str, run: Callable[..., Any]
) -> None:
    these = {"worker": worker, "its_host": host}
    for _ in range(2):  # the second finds all prepared
        found = run(database, lambda tx: execute_pipelined(tx, [(SET_HOST, these), (HOST, these)], commit=True))
        assert found == [[(0,)], [(host,)]]
    assert read(database, HOST, worker=worker) == [(host,)]


def test_none_is_no_message(database: Database) -> None:
    assert database.run_pipelined(lambda tx: execute_pipelined(tx, [], commit=True)) == []


def test_what_a_message_began_an_error_rolls_back(database: Database, worker: str) -> None:
    def spoiled(tx: Connection) -> None:
        execute_pipelined(tx, [(SET_HOST, {"worker": worker, "its_host": "y"})])
        raise LookupError

    with pytest.raises(LookupError):
        database.run_pipelined(spoiled)
    assert read(database, HOST, worker=worker) == [("x",)]


@postgresql_only
def test_with_commit_it_is_there_before_the_transaction_ends(database: Database, worker: str) -> None:
    def transaction(tx: Connection) -> None:
        execute_pipelined(tx, [(LOCKED, {"worker": worker})])
        execute_pipelined(tx, [(SET_HOST, {"worker": worker, "its_host": "y"})], commit=True)
        assert read(database, HOST, worker=worker) == [("y",)]

    database.run_pipelined(transaction)


@postgresql_only
def test_a_wrong_statement_in_a_message_keeps_nothing(database: Database, worker: str) -> None:
    wrong = Statement(text("SELECT 1 / (length(:zero) - 1)").bindparams(bindparam("zero", type_=Text)))

    def transaction(tx: Connection) -> None:
        calls = [(SET_HOST, {"worker": worker, "its_host": "y"}), (wrong, {"zero": "0"})]
        execute_pipelined(tx, calls, commit=True)

    with pytest.raises(exc.DataError, match="division by zero"):
        database.run_pipelined(transaction)
    assert read(database, HOST, worker=worker) == [("x",)]
    assert database.run_pipelined(lambda tx: execute_pipelined(tx, [(SLOTS, {})])) == [[("a", 0)]]


@postgresql_only
def test_a_statement_sees_what_the_one_before_it_waited_for(database: Database, worker: str) -> None:
    these = {"worker": worker, "its_host": "y"}
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as tx:
            SET_HOST.rows(tx, these)
            waiting = pool.submit(
                database.run_pipelined, lambda tx: execute_pipelined(tx, [(LOCKED, these), (HOST, these)])
            )
            until_one_waits_for_a_lock(database)
        assert waiting.result() == [[(0,)], [("y",)]]


UPDATE = BulkStatement.update(
    WorkerRow.id,
    {"worker": Text, "its_host": Text},
    lambda given: update(WorkerRow).where(WorkerRow.id == given["worker"]).values(host=given["its_host"]),
)


@pytest.mark.parametrize("rows", [1, 40])  # in one statement; one by one
def test_rows_that_are_not_there_undo_what_is_to_be_exact(database: Database, worker: str, rows: int) -> None:
    there = [(worker, "y")]
    gone = [(f"gone-{n}", "y") for n in range(rows)]

    def transaction(tx: Connection) -> None:
        run_all(tx, [(UPDATE, there + gone)], exact=1, commit=True)

    with pytest.raises(RuntimeError, match="rows have changed"):
        database.run_pipelined(transaction)
    assert read(database, HOST, worker=worker) == [("x",)]
    database.run_pipelined(lambda tx: run_all(tx, [(UPDATE, there)], exact=1, commit=True))
    assert read(database, HOST, worker=worker) == [("y",)]
    database.run_pipelined(lambda tx: run_all(tx, [(UPDATE, gone)], exact=0))


def test_constants_are_to_be_literal(database: Database) -> None:
    with pytest.raises(ValueError, match=r"not given when it is run: \['id_1'\]"):
        read(database, Statement(select(WorkerRow.id).where(WorkerRow.id == "a")))


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

    assert database.run_pipelined(lambda tx: execute_pipelined(tx, [(HOST, {"worker": worker})])) == [[("x",)]]
    assert database.run_pipelined(transaction) == [[(0,)], [("x",)]]


@postgresql_only
def test_behind_a_pooler_statements_go_one_by_one(
    database: Database, worker: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another session than the one that prepared them: a pooler's, between one transaction and the next."""
    these = {"worker": worker, "its_host": "y"}
    calls = [(LOCKED, these), (SET_HOST, these)]
    database.run_pipelined(lambda tx: execute_pipelined(tx, calls, commit=True))
    database.run_pipelined(lambda tx: tx.execute(FORGET))
    with caplog.at_level(logging.WARNING):
        for host in ("z", "w"):
            these["its_host"] = host
            assert database.run_pipelined(lambda tx: execute_pipelined(tx, calls, commit=True)) == [[(0,)], [(0,)]]
            assert read(database, HOST, worker=worker) == [(host,)]
    assert [record.message for record in caplog.records if "pooler" in record.message] == [
        "a pooler stands before the database: nothing is prepared, statements go one by one"
    ]

    def spoiled(tx: Connection) -> None:
        execute_pipelined(tx, calls, commit=True)
        raise LookupError

    these["its_host"] = "not kept"
    with pytest.raises(LookupError):
        database.run_pipelined(spoiled)
    assert read(database, HOST, worker=worker) == [("w",)]


@postgresql_only
def test_behind_a_pooler_psycopg_prepares_nothing_either(database: Database, worker: str) -> None:
    """Relies on psycopg preparing what it has run five times."""
    for _ in range(8):
        assert read(database) == [(worker, 0)]
    assert PREPARED in database.read(lambda tx: tx.execute(PREPARED_NAMES).scalars().all())[0]
    database.run_pipelined(lambda tx: tx.execute(FORGET))
    for _ in range(8):
        assert read(database) == [(worker, 0)]
    assert database.read(lambda tx: tx.execute(PREPARED_NAMES).scalars().all()) == []


def test_equal_statements_have_equal_names() -> None:
    again = Statement(select(WorkerRow.id, WorkerRow.slots).order_by(WorkerRow.id))
    assert again.prepared == SLOTS.prepared
    assert HOST.prepared.name != SLOTS.prepared.name
    assert len(HOST.prepared.name) < 64, "PostgreSQL would cut it off"
