"""What several tests of the dashboard begin with."""

from collections.abc import Iterator

import pytest

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants


@pytest.fixture
def keys(settings: Settings) -> Iterator[ApiKeys]:
    """The keys of a database with the tenants acme and globex."""
    database = Database(settings.resolved_database_url)
    for tenant in ("acme", "globex"):
        Tenants(database).create(tenant)
    yield ApiKeys(database)
    database.close()
