"""The schema: what the migrations make is what the models say, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text

from omni_jobs.db import REVISION, Database
from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.models import Base
from omni_jobs.schema import downgrade, newest_revision


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables; of SQLite, not even a file nor its directory."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'new' / 'x.sqlite'}"
        return
    server: str = request.getfixturevalue("postgres_url")
    name = f"empty_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield f"{server.rsplit('/', 1)[0]}/{name}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url, retry_for_s=5)
    yield database
    database.close()


def test_the_migrations_make_what_the_models_say(empty: Database) -> None:
    empty.migrate()
    with empty.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        indices = {
            index["name"]: index["dialect_options"].get(f"{empty.dialect}_where")
            for index in inspect(connection).get_indexes("stage_runs")
        }
    assert {name for name, where in indices.items() if where is not None} >= {
        "ix_stage_runs_pending",
        "ix_stage_runs_queued",
        "ix_stage_runs_running",
    }


def test_migrating_again_changes_nothing(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO workers (id, slot, pipeline, stage, host, pid, slots, started_at, renewed_at, lease_until)"
                " VALUES ('w', 's', 'p', 't', 'h', 1, 1, 0, 0, 0)"
            )
        )
    database.migrate()
    database.check()
    with database.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM workers")).scalar_one() == 1


def test_processes_may_migrate_at_once(empty_url: str) -> None:
    def migrate(_: int) -> None:
        database = Database(empty_url)
        database.migrate()
        database.check()
        database.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate, range(4)))


def test_the_newest_migration_is_the_revision_that_is_asked_for() -> None:
    assert newest_revision() == REVISION


def test_the_way_back(empty: Database) -> None:
    empty.migrate()
    with empty.begin() as connection:
        downgrade(connection, "base")
        assert set(inspect(connection).get_table_names()) <= {"alembic_version"}


def test_a_database_without_the_schema_is_not_ready(empty: Database) -> None:
    if empty.dialect == "postgresql":
        with pytest.raises(DatabaseUnavailable, match="run omni-jobs migrate"):
            empty.check()
    else:
        with pytest.raises(DatabaseUnavailable):
            empty.check()
    empty.migrate()
    empty.check()
    with empty.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'older'"))
    with pytest.raises(DatabaseUnavailable, match="the database's schema is older"):
        empty.check()
