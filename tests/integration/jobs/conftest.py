"""``Jobs`` on SQLite and on PostgreSQL, as they are and with lost answers."""

from collections.abc import Iterator

import pytest

from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs
from tests.integration.job_steps import ForgetfulDatabase


@pytest.fixture
def jobs(database: Database) -> Jobs:
    return Jobs(database)


@pytest.fixture(params=["heard", "lost"])
def jobs_or_forgetful(request: pytest.FixtureRequest, database_url: str) -> Iterator[Jobs]:
    """Jobs as they are, and with every commit's answer lost once: both must behave alike."""
    database = Database(database_url) if request.param == "heard" else ForgetfulDatabase(database_url)
    yield Jobs(database)
    database.close()
