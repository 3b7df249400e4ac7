"""The databases on PostgreSQL that tests get one after another: each as migrated, whatever the test before has done."""

from contextlib import closing

import psycopg
import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.database.tables import Base
from omni_jobs.jobs import Jobs
from tests.integration.job_steps import claim, new_job, register, submit_one
from tests.services.postgres import EmptyDatabases


def contents(url: str) -> dict[str, int]:
    with closing(Database(url)) as database:
        counts = {name: text(f"SELECT count(*) FROM {name}") for name in Base.metadata.tables}
        return database.read(lambda tx: {name: tx.execute(count).scalar_one() for name, count in counts.items()})


def test_what_a_test_leaves_is_gone(empty_databases: EmptyDatabases) -> None:
    url = empty_databases.take()
    as_migrated = contents(url)
    with closing(Database(url)) as left_open:
        jobs = Jobs(left_open)
        submit_one(jobs, new_job())
        register(jobs, "w")
        (before,) = claim(jobs, "w")
        assert contents(url) != as_migrated
        empty_databases.give_back(url)
    assert empty_databases.take() == url
    assert contents(url) == as_migrated
    with closing(Database(url)) as database:
        jobs = Jobs(database)
        submit_one(jobs, new_job())
        register(jobs, "w")
        (again,) = claim(jobs, "w")
    assert again.stage_run_id == before.stage_run_id, "ids begin anew"
    empty_databases.give_back(url)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE jobs ADD COLUMN colour text",
        "CREATE INDEX ON jobs (seed)",
        "ALTER TABLE jobs SET (fillfactor = 50)",
        "DROP TABLE alembic_version",
        "UPDATE alembic_version SET version_num = 'older'",
        "DELETE FROM write_checks",
        "ALTER DATABASE {name} SET default_transaction_read_only = on",
    ],
)
def test_one_that_a_test_has_changed_is_not_given_again(empty_databases: EmptyDatabases, change: str) -> None:
    url = empty_databases.take()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(change.format(name=url.rpartition("/")[2]))
    empty_databases.give_back(url)
    other = empty_databases.take()
    assert other != url
    empty_databases.give_back(other)
