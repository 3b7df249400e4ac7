"""Lists by filters, actions on many jobs, and submits that wait, over HTTP, on both databases."""

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from omni_jobs.api import many_jobs
from omni_jobs.errors import DatabaseUnavailable
from omni_jobs.jobs import Glance
from omni_jobs.settings import Settings
from omni_jobs.views import JobActionView, JobView
from tests.integration.api_server import BEHIND_A_PROXY, ApiServer, serve
from tests.integration.served_jobs import claimed, completed, failed

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update=BEHIND_A_PROXY)


def submitted(api: ApiServer, tenant: str = "a", **fields: Any) -> str:
    answer = api.http.post("/v1/jobs", json=ECHO | fields, headers={"X-Tenant": tenant})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def listed(api: ApiServer, params: Any, tenant: str = "a") -> list[str]:
    answer = api.http.get("/v1/jobs", params=params, headers={"X-Tenant": tenant})
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["jobs"]]


def sent(api: ApiServer, action: str, body: Any, tenant: str = "a") -> httpx2.Response:
    return api.http.post(f"/v1/jobs/{action}", json=body, headers={"X-Tenant": tenant})


def acted(api: ApiServer, action: str, body: Any, tenant: str = "a") -> JobActionView:
    answer = sent(api, action, body, tenant)
    assert answer.status_code == 200, answer.text
    return JobActionView.model_validate(answer.json())


def refusal(answer: httpx2.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"].get("field")


def test_a_list_takes_every_filter(api: ApiServer) -> None:
    sea = submitted(api, metadata={"project": "sea", "漢=字": "x"})
    land = submitted(api, metadata={"project": "land", "take": "a=b"})
    plain = submitted(api)
    submitted(api, "b", metadata={"project": "sea"})
    assert failed(api, land).status == "failed"
    claimed(api, plain)
    assert listed(api, {"metadata": "project=sea"}) == [sea]
    assert listed(api, [("metadata", "project=land"), ("metadata", "take=a=b")]) == [land]
    assert listed(api, [("metadata", "project=sea"), ("metadata", "take=a=b")]) == []
    assert listed(api, [("metadata", "project=land"), ("metadata", "project=sea")]) == []
    assert listed(api, {"stage": "first"}) == [plain, land, sea]
    assert listed(api, {"stage": "first", "status": "failed"}) == [land]
    assert listed(api, {"stage": "second"}) == []
    assert listed(api, {"error_code": "model_error", "pipeline": "echo"}) == [land]
    at = api.services.jobs.get(land).created_at.isoformat()
    assert listed(api, {"created_before": "2020-01-01T00:00:00Z"}) == []
    assert listed(api, {"created_after": "1577836800", "created_before": at})[-1] == sea
    assert listed(api, {"tenant": "a"}) == [plain, land, sea]
    answer = api.http.get("/v1/jobs", params={"tenant": "b"}, headers={"X-Tenant": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")


def test_who_sees_all_may_name_a_tenant(settings: Settings) -> None:
    with serve(settings) as api:
        ids = {tenant: submitted(api, tenant, metadata={"k": "v"}) for tenant in ("a", "b")}
    with serve(settings.model_copy(update={"auth": "off", "tenant_header": None})) as api:
        assert listed(api, {"metadata": "k=v"}) == [ids["b"], ids["a"]]
        assert listed(api, {"tenant": "a"}) == listed(api, {"tenant": "a", "metadata": "k=v"}) == [ids["a"]]
        assert acted(api, "cancel", {"tenant": "b"}).changed == 1
        assert api.services.jobs.get(ids["a"]).status == "queued"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ([("metadata", "no equals sign")], "metadata"),
        ([("metadata", "k=" + "v" * 513)], "metadata"),
        ([("metadata", f"k{number}=v") for number in range(6)], "metadata"),
        ([("created_after", "yesterday")], "created_after"),
        ([("created_after", "2026-01-05T00:00:00")], "created_after"),
        ([("created_before", "1" * 400)], "created_before"),
        ([("created_before", "-1")], "created_before"),
        ([("stage", "../x")], "stage"),
        ([("tenant", "ü")], "tenant"),
        ([("pipeline", "echo"), ("pipeline", "echo")], "pipeline"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused(api: ApiServer, params: Any, field: str) -> None:
    status, named = refusal(api.http.get("/v1/jobs", params=params, headers={"X-Tenant": "a"}))
    assert (status, (named or "").split(".")[0]) == (422, field)


def test_many_are_cancelled_and_only_those_that_match(api: ApiServer) -> None:
    of_sea = [submitted(api, metadata={"project": "sea"}) for _ in range(3)]
    others = [submitted(api), submitted(api, "b", metadata={"project": "sea"})]
    ended = submitted(api, metadata={"project": "sea"})
    completed(api, ended)
    wanted = {"metadata": {"project": "sea"}}
    counted = acted(api, "cancel", {**wanted, "dry_run": True})
    assert (counted.dry_run, counted.matched, counted.changed, counted.next_cursor) == (True, 3, 0, None)
    assert not api.services.jobs.get(of_sea[0]).status.is_final
    done = acted(api, "cancel", wanted)
    assert done == JobActionView(action="cancel", dry_run=False, matched=3, changed=3)
    assert {api.services.jobs.get(each).status for each in of_sea} == {"cancelled"}
    assert not any(api.services.jobs.get(each).status.is_final for each in others)
    assert acted(api, "cancel", wanted).matched == 0


def test_a_limit_leaves_a_cursor(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_jobs, "GROUP", 2)
    ids = [submitted(api) for _ in range(7)]
    body: dict[str, Any] = {"pipeline": "echo", "limit": 3}
    first = acted(api, "cancel", body)
    assert (first.changed, first.next_cursor) == (3, ids[4])
    assert {api.services.jobs.get(each).status for each in ids[4:]} == {"cancelled"}
    second = acted(api, "cancel", {**body, "cursor": first.next_cursor})
    third = acted(api, "cancel", {**body, "cursor": second.next_cursor})
    assert (second.changed, third.changed, third.next_cursor) == (3, 1, None)


def test_many_are_deleted(api: ApiServer) -> None:
    ids = [submitted(api, metadata={"project": "sea"}) for _ in range(3)]
    completed(api, ids[0])
    failed(api, ids[1])
    assert acted(api, "delete", {"status": "failed"}).changed == 1
    assert acted(api, "delete", {"created_before": "2100-01-01T00:00:00Z"}).changed == 1
    assert [job.id for job in api.services.jobs.list().jobs] == [ids[2]]


def test_many_are_retried_and_those_that_cannot_be_are_told(api: ApiServer) -> None:
    broken = [submitted(api) for _ in range(3)]
    for each in broken:
        failed(api, each)
    done = submitted(api)
    completed(api, done)
    result = acted(api, "retry", {"pipeline": "echo"})
    assert (result.matched, result.changed, result.skipped) == (3, 3, [])
    assert {api.services.jobs.get(each).retries for each in broken} == {1}
    assert acted(api, "retry", {"pipeline": "echo"}).matched == 0
    result = acted(api, "retry", {"pipeline": "echo", "from_stage": "none"})
    [skipped] = result.skipped
    assert (result.changed, skipped.code, skipped.count, skipped.job_id) == (0, "invalid_request", 1, done)
    assert acted(api, "retry", {"status": "completed", "from_stage": "first"}).changed == 1
    assert api.services.jobs.get(done).status == "queued"


def test_a_full_backlog_stops_retries_and_says_where(settings: Settings) -> None:
    with serve(settings) as api:
        ids = [submitted(api) for _ in range(4)]
        for each in ids:
            failed(api, each)
    with serve(settings.model_copy(update={"max_queued_jobs_per_tenant": 2})) as api:
        result = acted(api, "retry", {"status": "failed"})
        assert result.stopped_by is not None
        assert (result.changed, result.stopped_by.code, result.next_cursor) == (2, "too_many_jobs", ids[2])
        answer = sent(api, "retry", {"status": "failed"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_jobs")
        acted(api, "cancel", {"status": "queued"})


@pytest.mark.parametrize("action", ["cancel", "delete", "retry"])
def test_a_job_that_left_the_wanted_state_meanwhile_is_skipped(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    jobs = api.services.jobs
    other, changes = submitted(api), submitted(api)
    status = "queued" if action == "cancel" else "cancelled"
    if action != "cancel":
        jobs.cancel_all([other, changes])
    matching = jobs.matching

    def changed_behind(*args: Any) -> Any:
        found = matching(*args)
        if action == "cancel":
            claimed(api, changes)
        else:
            jobs.retry(changes)
            failed(api, changes)
        return found

    monkeypatch.setattr(jobs, "matching", changed_behind)
    result = acted(api, action, {"status": status})
    left = 2 if action == "cancel" else 1  # a worker that claims has begun both
    assert [(each.code, each.job_id, each.count) for each in result.skipped] == [("conflict", changes, left)]
    assert result.changed == 2 - left
    assert jobs.get(changes).status == ("in_progress" if action == "cancel" else "failed")


def test_an_outage_in_the_middle_says_what_was_done(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_jobs, "GROUP", 2)
    ids = [submitted(api) for _ in range(4)]
    cancel_all = api.services.jobs.cancel_all
    calls: list[Sequence[str]] = []

    def breaks(job_ids: Sequence[str], **more: Any) -> set[str]:
        calls.append(job_ids)
        if len(calls) > 1:
            raise DatabaseUnavailable("away")
        return cancel_all(job_ids, **more)

    monkeypatch.setattr(api.services.jobs, "cancel_all", breaks)
    result = acted(api, "cancel", {"pipeline": "echo"})
    assert result.stopped_by is not None
    assert (result.changed, result.stopped_by.code, result.next_cursor) == (2, "database_unavailable", ids[2])
    assert sent(api, "cancel", {"pipeline": "echo"}).status_code == 503


@pytest.mark.parametrize(
    ("action", "body", "field"),
    [
        ("cancel", {}, "body"),
        ("delete", {"dry_run": True}, "body"),
        ("delete", {"limit": 5, "metadata": {}, "status": None}, "body"),
        ("retry", {"from_stage": "first"}, "body"),
        ("cancel", [], "body"),
        ("cancel", {"status": "completed"}, "status"),
        ("delete", {"status": "queued"}, "status"),
        ("retry", {"status": "completed"}, "status"),
        ("retry", {"status": "lost"}, "status"),
        ("delete", {"pipeline": "echo", "from_stage": "first"}, "from_stage"),
        ("delete", {"pipeline": "echo", "limit": 1001}, "limit"),
        ("delete", {"pipeline": "echo", "limit": "9"}, "limit"),
        ("delete", {"metadata": {"k": 1}}, "metadata.k"),
        ("delete", {"metadata": {str(number): "" for number in range(6)}}, "metadata"),
        ("delete", {"created_before": "2026-01-05"}, "created_before"),
        ("delete", {"pipeline": "echo", "cursor": "job-x"}, "cursor"),
    ],
)
def test_an_action_that_cannot_be_read_changes_nothing(api: ApiServer, action: str, body: Any, field: str) -> None:
    assert refusal(sent(api, action, body)) == (422, field)


def test_bodies_that_are_no_json_or_too_large_are_refused(api: ApiServer) -> None:
    headers = {"X-Tenant": "a", "Content-Type": "application/json"}
    assert api.http.post("/v1/jobs/delete", content=b"{", headers=headers).status_code == 422
    twice = b'{"metadata": {"project": "sea"}, "status": "failed", "metadata": {}}'
    assert refusal(api.http.post("/v1/jobs/delete", content=twice, headers=headers)) == (422, "metadata")
    assert api.http.post("/v1/jobs/delete", content=b'"' + b"x" * 70_000, headers=headers).status_code == 413
    assert api.http.post("/v1/jobs/delete", data={"status": "failed"}, headers={"X-Tenant": "a"}).status_code == 415
    assert api.http.get("/v1/jobs/delete", headers=headers).status_code == 405


# A submit that waits.


def test_a_submit_waits_for_the_end(api: ApiServer) -> None:
    waits = threading.Event()
    seen: list[str] = []
    glances = api.services.jobs.glances

    def noted(job_ids: Sequence[str], with_runs: Collection[str]) -> Mapping[str, Glance]:
        seen.extend(job_ids)
        waits.set()
        return glances(job_ids, with_runs)

    api.services.jobs.glances = noted  # type: ignore[method-assign]
    headers = {"X-Tenant": "a", "Prefer": "respond-async, wait=300"}
    with ThreadPoolExecutor(1) as pool:
        url = f"http://{api.host}:{api.port}/v1/jobs"
        answer = pool.submit(httpx2.post, url, json=ECHO, headers=headers, timeout=60, trust_env=False)
        assert waits.wait(30)
        completed(api, seen[0])
        ended = answer.result()
    assert (ended.status_code, ended.headers["Preference-Applied"]) == (200, "wait=60")
    assert JobView.model_validate(ended.json()) == api.services.jobs.get(seen[0])
    assert ended.headers["Location"] == f"/v1/jobs/{seen[0]}"


def test_a_submit_that_has_waited_in_vain_is_accepted(api: ApiServer) -> None:
    answer = api.http.post("/v1/jobs", json=ECHO, headers={"X-Tenant": "a", "Prefer": "wait=1"})
    assert (answer.status_code, answer.headers["Preference-Applied"]) == (202, "wait=1")
    assert answer.json()["status"] == "queued"


def test_a_preference_that_is_not_kept_is_not_said_to_be(settings: Settings) -> None:
    with serve(settings.model_copy(update={"max_waits": 0})) as api:
        for preference in ("wait=1", "wait=x", "respond-async", ""):
            answer = api.http.post("/v1/jobs", json=ECHO, headers={"X-Tenant": "a", "Prefer": preference})
            assert answer.status_code == 202
            assert "Preference-Applied" not in answer.headers
