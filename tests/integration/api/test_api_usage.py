"""``GET /v1/usage``, and usage in a job's view, over HTTP, on both databases."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import httpx2
import pytest

from omni_jobs.settings import Settings
from omni_jobs.views import UsageReport
from tests.integration.api_server import BEHIND_A_PROXY, ApiServer, serve
from tests.integration.served_jobs import completed

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update=BEHIND_A_PROXY)


def run(api: ApiServer, tenant: str) -> str:
    """A job of two stages, done."""
    job_id = str(api.http.post("/v1/jobs", json=ECHO, headers={"X-Tenant": tenant}).json()["id"])
    completed(api, job_id)
    return job_id


def asked(api: ApiServer, **params: str) -> httpx2.Response:
    """As the tenant a."""
    return api.http.get("/v1/usage", params=params, headers={"X-Tenant": "a"})


def report(api: ApiServer, **params: str) -> UsageReport:
    answer = asked(api, **params)
    assert answer.status_code == 200, answer.text
    return UsageReport.model_validate(answer.json())


def test_a_tenant_sees_what_it_has_used_itself(settings: Settings) -> None:
    with serve(settings) as api:
        job_id = run(api, "a")
        run(api, "b")
        job = api.http.get(f"/v1/jobs/{job_id}", headers={"X-Tenant": "a"}).json()
        assert [stage["usage"]["attempts"] for stage in job["stages"]] == [1, 1]
        assert job["usage"]["attempts"] == 2
        found = report(api)
        assert found.total.model_dump() == job["usage"]
        assert {(row.tenant, row.pipeline, row.stage) for row in found.rows} == {
            ("a", "echo", "first"),
            ("a", "echo", "second"),
        }
        assert found.last_day - found.first_day == timedelta(days=29)
        assert datetime.now(UTC).date() - found.last_day <= timedelta(days=1)
        assert api.http.delete(f"/v1/jobs/{job_id}", headers={"X-Tenant": "a"}).status_code == 204
        assert report(api) == found
        assert report(api, by="stage", tenant="a").total == found.total
        refused = asked(api, tenant="b")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    with serve(settings.model_copy(update={"auth": "off", "tenant_header": None})) as api:
        assert [(row.tenant, row.usage.attempts) for row in report(api, by="tenant").rows] == [("a", 2), ("b", 2)]


def test_days_are_given_and_bounded(api: ApiServer) -> None:
    run(api, "a")
    whole = report(api, **{"from": "2000-01-01", "to": "2200-01-01", "by": "day"})
    assert (whole.first_day, whole.last_day, whole.total.attempts) == (date(2000, 1, 1), date(2200, 1, 1), 2)
    assert report(api, to="2000-01-05").total.attempts == 0
    assert report(api, to="0001-01-02").first_day == date(1, 1, 1)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"from": "2026-02-30"}, "from"),
        ({"from": "1577836800"}, "from"),
        ({"to": "today"}, "to"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "from"),
        ({"by": "colour"}, "by"),
        ({"by": ""}, "by"),
        ({"by": "day,,stage"}, "by"),
        ({"pipeline": "../x"}, "pipeline"),
        ({"tenant": "ü"}, "tenant"),
    ],
)
def test_what_cannot_be_read_is_refused(api: ApiServer, params: dict[str, Any], field: str) -> None:
    answer = asked(api, **params)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field), answer.text
