"""What needs a person stands on the overview of those who see it."""

import re

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Quarantined
from omni_jobs.jobs import Failure
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve
from tests.integration.dashboard.visits import with_keys
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
    assert "1 quarantined job</bdi></a>" in html
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


def test_of_many_keys_that_expire_the_first_are_named(settings: Settings) -> None:
    with with_keys(settings) as (api, by):
        keys = [ApiKeys(api.services.db).create("acme", ["read"], expires_in_s=3600.0 * (9 - n)) for n in range(5)]
        revoked = ApiKeys(api.services.db).create("acme", ["read"], expires_in_s=60.0)
        ApiKeys(api.services.db).revoke(revoked.id)
        page = api.http.get("/", headers=by["operator"]).text
    assert re.findall(r"the key (\S+) of", page) == [keys[n].id for n in (4, 3, 2)]
    assert "2 other keys that expire within a week" in page


def test_a_stage_with_work_and_no_worker_needs_one(api: ApiServer) -> None:
    for _ in range(2):
        api.http.post("/v1/jobs", json=ECHO)
    assert "echo.first: 2 stage runs queued, and no worker</bdi></a>" in api.http.get("/").text


def test_a_rescuer_that_has_stopped_needs_one(api: ApiServer) -> None:
    assert api.services.jobs.sample() is not None
    with api.services.db.begin() as tx:
        tx.execute(text("UPDATE samplings SET at = at - 60"))
    assert re.search(r"nobody has sampled the stages for 1 min \d+ s,", api.http.get("/").text)


def test_the_numbers_of_jobs_are_those_of_the_lists_to_which_they_lead(settings: Settings) -> None:
    database = Database(settings.resolved_database_url)
    for tenant in ("acme", "globex"):
        Tenants(database).create(tenant)
    own, other = (ApiKeys(database).create(tenant, ["admin"]) for tenant in ("acme", "globex"))
    database.close()
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        api.http.post("/v1/jobs", json=ECHO, headers={"Authorization": f"Bearer {other.key}"})
        pages = [
            api.http.get("/fragments/overview", headers={"Authorization": f"Bearer {key.key}"}).text
            for key in (own, other)
        ]
    tile = re.compile(r'href="/jobs\?status=queued"><b>(\d+)')
    assert [tile.findall(page) for page in pages] == [["0"], ["1"]]
