"""The schema: what the migrations make is what the models say, on both databases."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, text

from omni_jobs.database.database import REVISION, Database
from omni_jobs.database.migrations import oldest_build, revisions
from omni_jobs.database.tables import Base
from omni_jobs.errors import ConfigError, DatabaseUnavailable
from omni_jobs.settings import packaged_directory


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
        "ix_stage_runs_apart",
        "ix_stage_runs_high",
        "ix_stage_runs_pending_files",
        "ix_stage_runs_queued",
        "ix_stage_runs_running",
    }


def test_a_request_is_the_last_column(database: Database) -> None:
    """SQLite reads a row up to the last column that is asked for, and requests may be megabytes."""
    with database.begin() as connection:
        names = [column["name"] for column in inspect(connection).get_columns("jobs")]
    assert names[-1] == "request"


def test_postgresql_vacuums_large_tables_often_and_leaves_room_beside_stage_runs(empty: Database) -> None:
    if empty.dialect != "postgresql":
        pytest.skip("SQLite has no such parameters")
    empty.migrate()
    query = text("SELECT relname, reloptions FROM pg_class WHERE relkind = 'r' AND reloptions IS NOT NULL")
    with empty.begin() as connection:
        found = {row.relname: set(row.reloptions) for row in connection.execute(query) if row.relname[:3] != "pg_"}
    often = {"autovacuum_vacuum_scale_factor=0.02", "autovacuum_analyze_scale_factor=0.02"}
    assert found == {"jobs": often, "stage_runs": often | {"fillfactor=70"}}


def test_migrating_again_changes_nothing(database: Database) -> None:
    with database.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO workers (id, slot, pipeline, stage, host, pid, slots, started_at, renewed_at, lease_until,"
                " heartbeat_s, slots_for_high, loading, pipeline_version, pipeline_digest)"
                " VALUES ('w', 's', 'p', 't', 'h', 1, 1, 0, 0, 0, 1, 0, false, '1', 'd')"
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


def newer(database: Database, revision: str, oldest: str | None) -> None:
    """Make the schema that of a newer build, which lets those work on it that know ``oldest``; None: it tells none."""

    def change(tx: Connection) -> None:
        tx.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
        if oldest is None:
            tx.execute(text("DROP TABLE oldest_builds"))
        else:
            update = text("UPDATE oldest_builds SET revision = :oldest, release = '7.0.0'")
            tx.execute(update, {"oldest": oldest})

    database.run(change)


@pytest.mark.parametrize("revision", ["9999", "0099"])
def test_the_schema_of_before_the_first_release_is_refused(empty: Database, revision: str) -> None:
    empty.migrate()
    newer(empty, revision, None)
    told = (
        rf"schema is {revision}, this build knows those up to {REVISION}: a newer version made it, or one from before"
    )
    with pytest.raises(ConfigError, match=told):
        empty.migrate()
    with pytest.raises(DatabaseUnavailable, match=told):
        empty.check()


def test_a_newer_schema_is_used_and_left_alone_where_this_build_may_work_on_it(empty: Database) -> None:
    empty.migrate()
    newer(empty, "9999", REVISION)
    empty.check()
    assert empty.is_ahead()
    empty.migrate()
    assert empty.revision() == "9999"
    with pytest.raises(ConfigError, match="cannot migrate the database: a newer one has"):
        empty.migrate("0020")


def test_a_newer_schema_says_which_build_it_takes(empty: Database) -> None:
    empty.migrate()
    newer(empty, "9999", "9998")
    told = (
        rf"work that know 9998 or newer, and this one knows those up to {REVISION}: start one of omni-jobs 7\.0\.0 or"
    )
    for refused, error in (
        (empty.migrate, ConfigError),
        (empty.is_ahead, ConfigError),
        (empty.check, DatabaseUnavailable),
    ):
        with pytest.raises(error, match=told):
            refused()


def test_each_schema_knows_the_oldest_build(empty: Database) -> None:
    first = next(number for number, each in enumerate(revisions()) if each.oldest is not None)
    for each in revisions()[first:]:
        empty.migrate(each.number)
        expected = oldest_build(each.number)
        assert expected is not None
        assert oldest_row(empty) == (expected.number, expected.release)
    for each in revisions()[: first - 1 : -1]:
        expected = oldest_build(each.number)
        assert expected is not None
        empty.migrate(each.number)
        assert oldest_row(empty) == (expected.number, expected.release)
    empty.migrate(revisions()[first - 1].number)
    assert "oldest_builds" not in empty.read(empty.table_names)


def oldest_row(database: Database) -> tuple[str, str]:
    query = text("SELECT revision, release FROM oldest_builds")
    revision, release = database.read(lambda tx: tx.execute(query).one())
    return revision, release


def test_tables_that_are_gone_from_a_schema_of_this_version_are_told(empty: Database) -> None:
    empty.migrate()
    with empty.begin() as connection:
        Base.metadata.drop_all(connection)
    with pytest.raises(DatabaseUnavailable, match="lacks the table abandoned_jobs: restore it from a backup"):
        empty.migrate()


def test_the_newest_migration_is_the_revision_that_is_asked_for() -> None:
    scripts = ScriptDirectory(str(packaged_directory("migrations")))
    assert scripts.get_current_head() == REVISION


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
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    with pytest.raises(DatabaseUnavailable, match="the database's schema is 0001, this build needs"):
        empty.check()


def test_partial_indexes_stay_what_the_models_say(empty: Database, tmp_path: Path) -> None:
    if empty.dialect != "sqlite":
        pytest.skip("only SQLite copies tables")
    empty.migrate()
    made = create_engine(f"sqlite:///{tmp_path / 'made.sqlite'}")
    Base.metadata.create_all(made)
    query = text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name")
    with empty.begin() as connection, made.begin() as other:
        found, expected = (
            {row.name: " ".join(row.sql.replace('"', "").split()) for row in each.execute(query)}
            for each in (connection, other)
        )
    made.dispose()
    assert found == expected
