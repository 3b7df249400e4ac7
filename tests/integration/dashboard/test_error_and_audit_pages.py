"""The pages of errors and of the audit over HTTP: what they count and tell, and to whom."""

import re

import pytest

from omni_jobs.dashboard import audit, error_kinds
from omni_jobs.dashboard.error_kinds import bars_of
from omni_jobs.errors import ModelError
from omni_jobs.jobs import Failure
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from tests.integration.api_server import ApiServer
from tests.integration.dashboard.visits import Bearer, forms_of, sent, with_keys
from tests.integration.job_steps import fail
from tests.integration.served_jobs import claimed

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def failed(api: ApiServer, message: str, by: Bearer | None = None) -> str:
    """A job whose first attempt has failed for good."""
    job = str(api.http.post("/v1/jobs", json=ECHO, headers=by).json()["id"])
    claim = claimed(api, job)
    error = ModelError(message, stage=claim.stage)
    fail(api.services.jobs, Failure(claim.stage_run_id, claim.attempt, f"w-{claim.stage}", error))
    return job


def rows_of(html: str) -> list[str]:
    return re.findall(r'<tr id="(?:kind|act)-.*?</tr>', html, re.DOTALL)


def test_errors_are_counted_by_kind_with_a_job_of_each(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = [failed(api, f"tensor {n} of job-{n:032x} is broken") for n in range(3)][-1]
    other = failed(api, MARKUP)
    page = api.http.get("/errors").text
    first, second = rows_of(page)
    assert "tensor &lt;number&gt; of &lt;id&gt; is broken" in first
    assert (">3<" in first, newest in first, ">1<" in second, other in second) == (True, True, True, True)
    assert first.count('<rect class="bar"') in (1, 2)  # the time went on between two bars, perhaps
    assert (MARKUP in page, "&lt;img src=x onerror=alert(1)&gt;" in page) == (False, True)
    assert "over the hour" in api.http.get("/errors?over=hour").text.lower()
    for query in ("?over=year", "?x=1"):
        assert api.http.get(f"/errors{query}").status_code == 422
    monkeypatch.setattr(error_kinds, "_MOST", 1)
    assert len(rows_of(api.http.get("/errors?over=week").text)) == 1
    assert "there are others" in api.http.get("/errors?over=month").text


def test_bars_are_as_high_as_their_counts() -> None:
    assert bars_of([0, 1, 0, 1000, 500]) == [(4, 2, 1), (12, 28, 1000), (16, 14, 500)]
    assert bars_of([0, 0]) == []


def test_errors_and_acts_of_a_tenant_are_its_own(settings: Settings) -> None:
    with with_keys(settings) as (api, by):
        own, theirs = failed(api, "it broke", by["operator"]), failed(api, "it broke", by["other"])
        page = api.http.get("/errors", headers=by["reader"]).text
        assert (own in page, theirs in page, len(rows_of(page))) == (True, False, 1)
        assert api.http.get("/audit", headers=by["reader"]).status_code == 403
        assert sent(api, f"/jobs/{own}/retry", ("from_stage", ""), by=by["operator"]).status_code == 303
        assert sent(api, f"/jobs/{theirs}/retry", ("from_stage", ""), by=by["other"]).status_code == 303
        made = sent(api, "/tenants/acme/keys", ("scope", "read"), ("label", MARKUP), by=by["operator"])
        assert made.status_code == 200
        page = api.http.get("/audit", headers=by["operator"]).text
        [key, retry, *earlier] = rows_of(page)
        [operator] = [each for each in ApiKeys(api.services.db).all("acme") if each.name == "operator"]
        assert "made the key" in key
        assert operator.id in key  # who did it
        assert ("retried" in retry, f'href="/jobs/{own}"' in retry, operator.id in retry) == (True, True, True)
        assert all("a command on the database" in each for each in earlier)
        assert (theirs in page, "globex" in page, MARKUP in page) == (False, False, False)
        of_job = api.http.get(f"/audit?target={own}", headers=by["operator"]).text
        assert len(rows_of(of_job)) == 1
        assert api.http.get(f"/audit?target={theirs}", headers=by["operator"]).text.count("<tr") == 0


def test_the_audit_goes_on_by_pages(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_PAGE", 2)
    for path in ("/stages/echo/first/pause", "/stages/echo/second/pause", "/stages/echo/first/resume"):
        assert sent(api, path).status_code == 303
    page = api.http.get("/audit").text
    assert ["resumed the stage" in page, len(rows_of(page)), "echo.first" in page] == [True, 2, True]
    [older] = re.findall(r'rel="next" href="([^"]*)"', page)
    [last] = rows_of(api.http.get(older.replace("&amp;", "&")).text)
    assert ("paused the stage" in last, "echo.first" in last, "anyone" in last) == (True, True, True)
    for query in ("?before=x", "?before=1,act-x", f"?target={'x' * 300}", "?target=%00", "?x=1"):
        assert api.http.get(f"/audit{query}").status_code == 422, query


def test_a_worker_is_drained_and_resumed(api: ApiServer) -> None:
    claimed(api, str(api.http.post("/v1/jobs", json=ECHO).json()["id"]))
    for _ in range(2):
        assert sent(api, "/workers/w-first/drain").headers["location"] == "/workers"
    page = api.http.get("/workers").text
    assert "drained since" in page
    assert forms_of(page) == ["/workers/w-first/resume"]
    assert api.services.jobs.renew("w-first", 60).is_paused
    assert sent(api, "/workers/w-first/resume").status_code == 303
    assert not api.services.jobs.renew("w-first", 60).is_paused
    assert ["drained" in each for each in rows_of(api.http.get("/audit?target=w-first").text)] == [False, True]
    for path in ("/workers/none/drain", "/workers/none/resume", "/workers/%00/drain"):
        assert sent(api, path).status_code == 404, path
