"""The pages of operation over HTTP: which key sees which of them, and of each what that key's tenant has alone."""

import pytest
from sqlalchemy import text

from omni_jobs.errors import WorkerLost
from omni_jobs.jobs import Failure, NewWorker
from omni_jobs.metrics.stage_stats import StageStats, WorkerStats
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer
from tests.integration.dashboard.visits import Bearer, forms_of, sent, with_keys
from tests.integration.job_steps import fail
from tests.integration.served_jobs import claimed

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
FOR_OPERATORS = ("/workers", "/tenants", "/tenants/acme", "/audit")
FOR_READERS = ("/stages", "/quarantine", "/errors")
FRAGMENTS = [f"/fragments/{name}" for name in ("workers", "tenants", "stages", "errors", "quarantine", "audit")]
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def submitted(api: ApiServer, by: Bearer | None = None, **fields: object) -> str:
    return str(api.http.post("/v1/jobs", json=ECHO | fields, headers=by).json()["id"])


def quarantined(api: ApiServer, by: Bearer | None = None) -> str:
    """A job that has killed its workers until it was quarantined."""
    job = submitted(api, by)
    while not api.services.jobs.get(job).status.is_final:
        claim = claimed(api, job)
        lost = WorkerLost(f"{MARKUP} was lost while it ran this")
        fail(api.services.jobs, Failure(claim.stage_run_id, claim.attempt, f"w-{claim.stage}", lost))
    assert api.services.jobs.get(job).error.code == "quarantined"  # type: ignore[union-attr]
    return job


def test_each_key_finds_the_pages_that_it_may_see_and_no_buttons_that_it_may_not_use(settings: Settings) -> None:
    with with_keys(settings) as (api, by):
        own, theirs = quarantined(api, by["operator"]), quarantined(api, by["other"])
        for path in FOR_OPERATORS:
            assert api.http.get(path, headers=by["operator"]).status_code == 200, path
            refused = api.http.get(path, headers=by["reader"])
            assert (refused.status_code, "<h1>403</h1>" in refused.text) == (403, True), path
            assert 'href="/workers"' not in refused.text, "a page that the reader may not open"
        for path in FOR_READERS:
            seen = api.http.get(path, headers=by["reader"])
            assert (seen.status_code, forms_of(seen.text)) == (200, []), path
            assert 'href="/workers"' not in seen.text
            assert 'href="/workers"' in api.http.get(path, headers=by["operator"]).text
        tenants = ("/tenants", "/tenants/acme/limits", "/tenants/acme/keys")
        for path in ("/stages/echo/first/pause", "/workers/w/drain", *tenants):
            assert sent(api, path, ("scope", "admin"), by=by["reader"]).status_code == 403, path
        assert api.services.jobs.paused_stages() == {}
        page = api.http.get("/quarantine", headers=by["reader"]).text
        assert (own in page, theirs in page) == (True, False)
        assert MARKUP not in page
        assert "&lt;img src=x onerror=alert(1)&gt;" in page
        for path in FRAGMENTS:
            first = api.http.get(path, headers=by["operator"])
            again = api.http.get(path, headers={**by["operator"], "If-None-Match": first.headers["etag"]})
            assert (first.status_code, again.status_code) == (200, 304), path


def test_a_stage_is_paused_and_resumed_and_says_so(api: ApiServer) -> None:
    submitted(api)
    for _ in range(2):  # from two tabs
        paused = sent(api, "/stages/echo/first/pause")
        assert (paused.status_code, paused.headers["location"]) == (303, "/stages")
    page = api.http.get("/stages").text
    assert '<span class="why">paused</span>' in page
    assert "/stages/echo/first/resume" in forms_of(page)
    assert set(api.services.jobs.paused_stages()) == {("echo", "first")}
    sent(api, "/stages/echo/first/resume")
    assert api.services.jobs.paused_stages() == {}
    assert "no worker" in api.http.get("/stages").text
    for path in ("/stages/none/first/pause", "/stages/echo/none/pause", "/stages/echo/%00/resume"):
        assert sent(api, path).status_code == 404, path
    assert api.http.post("/stages/echo/first/pause").status_code == 403  # no page of ours sends it
    assert api.services.jobs.paused_stages() == {}


def test_the_numbers_of_stages_are_those_of_the_tenant_unless_it_operates(settings: Settings) -> None:
    with with_keys(settings) as (api, by):
        submitted(api, by["other"])
        seen = {name: api.http.get("/stages", headers=by[name]).text for name in ("operator", "reader")}
        assert ("no worker" in seen["operator"], "no worker<" in seen["reader"]) == (True, False)


def test_a_worker_shows_where_it_is_and_how_its_lease_stands(api: ApiServer) -> None:
    echo = api.services.pipelines["echo"]
    place = echo.stage_id("first")
    api.services.jobs.register_worker(NewWorker("w-1", f"{MARKUP}@a", place, MARKUP, 4711, 8, echo.version), 600.0)
    old = place._replace(pipeline=place.pipeline._replace(digest="0" * 16))
    api.services.jobs.register_worker(NewWorker("w-2", "b@b", old, "host-b", 1, 8, "0"), 600.0)
    submitted(api)
    assert len(api.services.jobs.claim("w-1", 1).claims) == 1
    page = api.http.get("/workers").text
    assert MARKUP not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") >= 2
    assert "pid 4711" in page
    assert "1 of 8" in page
    assert page.count("has another pipeline file") == 1
    assert "2 workers, 1 of 16 slots in use" in page
    assert "2 workers on 2 hosts" in page


def test_a_quarantined_job_shows_its_losses_and_is_retried(api: ApiServer) -> None:
    job = quarantined(api)
    page = api.http.get("/quarantine").text
    assert page.count("<code>worker_lost</code>") == len(api.services.jobs.get(job).stages[0].errors)
    assert forms_of(page) == ["/jobs/actions"]
    preview = sent(api, "/jobs/actions", ("job", job), ("verb", "retry"), ("query", "status=failed"))
    assert "Retry 1 job?" in preview.text
    done = sent(api, "/jobs/actions/run", ("verb", "retry"), ("job", job))
    assert "1 job retried" in done.text
    assert "No job is quarantined" in api.http.get("/quarantine").text
    for query in ("?cursor=x", "?x=1"):
        assert api.http.get(f"/quarantine{query}").status_code == 422


def test_operators_see_what_a_stage_has_ended_lately(settings: Settings) -> None:
    with with_keys(settings) as (api, by):
        jobs, echo = api.services.jobs, api.services.pipelines["echo"]
        jobs.register_worker(NewWorker("w", "w", echo.stage_id("first"), "host", 1, 8, echo.version), 600.0)
        assert jobs.sample() is not None
        jobs.renew("w", 600.0, stats=WorkerStats(StageStats({}, {"completed": 30, "model_error": 10})).to_json())
        with api.services.db.begin() as tx:
            tx.execute(text("UPDATE samplings SET at = at - 10"))
        assert jobs.sample() is not None
        pages = [api.http.get("/stages", headers=by[name]).text for name in ("operator", "reader")]
        assert ["25.0 % failed" in page for page in pages] == [True, False]
