"""What needs a person stands on the overview of those who see it."""

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Quarantined
from omni_jobs.jobs import Failure
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve
from tests.integration.hand_worker import HandWorker
from tests.integration.job_steps import fail

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def test_nothing_needs_a_person_at_first(api: ApiServer) -> None:
    assert "Needs a person" not in api.http.get("/").text


def test_quarantined_jobs_and_a_missing_rescuer_need_one(api: ApiServer) -> None:
    worker = HandWorker(api, api.http.post("/v1/jobs", json=ECHO).json()["id"])
    claim = worker.claim("first")
    fail(worker.jobs, Failure(claim.stage_run_id, claim.attempt, "w-first", Quarantined("kills", stage="first")))
    html = api.http.get("/fragments/overview").text
    assert "1 quarantined job</a>" in html
    assert "no rescuer" not in html, "the worker has begun a moment ago"


def test_a_rescuer_that_is_missing_needs_one(api: ApiServer) -> None:
    worker = HandWorker(api, api.http.post("/v1/jobs", json=ECHO).json()["id"])
    worker.claim("first")
    with api.services.db.begin() as tx:
        tx.execute(text("UPDATE workers SET started_at = started_at - 300"))
    assert "no rescuer" in api.http.get("/fragments/overview").text


def test_a_rescuer_that_samples_is_there(api: ApiServer) -> None:
    worker = HandWorker(api, api.http.post("/v1/jobs", json=ECHO).json()["id"])
    worker.claim("first")
    assert api.services.jobs.sample() is not None
    with api.services.db.begin() as tx:
        tx.execute(text("UPDATE workers SET started_at = started_at - 300"))
    assert "no rescuer" not in api.http.get("/fragments/overview").text


def test_who_operates_alone_is_told_of_keys_that_expire_and_sees_charts(settings: Settings) -> None:
    database = Database(settings.resolved_database_url)
    for tenant in ("acme", "globex"):
        Tenants(database).create(tenant)
    keys = ApiKeys(database)
    other = keys.create("globex", ["admin"])
    admin = keys.create("acme", ["admin"], expires_in_s=86_400.0)
    reader = keys.create("acme", ["read"], expires_in_s=30 * 86_400.0)
    database.close()
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        charts = [
            api.http.get("/fragments/charts", headers={"Authorization": f"Bearer {key.key}"}).status_code
            for key in (admin, reader)
        ]
        pages = [
            api.http.get("/", headers={"Authorization": f"Bearer {key.key}"}).text for key in (admin, reader, other)
        ]
    told = f"the key {admin.id} of the tenant acme expires in "
    assert [told in page for page in pages] == [True, False, False]  # a tenant's operator sees no other's keys
    assert '<a href="/tenants/acme">' in pages[0]
    assert reader.id not in pages[0]
    assert (charts, ["The last hour" in page for page in pages]) == ([200, 403], [True, False, True])
