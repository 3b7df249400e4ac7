"""Deadlines, tenants, back-pressure, retry, delete and events over HTTP, on both databases."""

import json
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from omni_jobs.cli import Exit, app
from omni_jobs.jobs import Glance, Retention
from omni_jobs.settings import Settings
from omni_jobs.states import JobState
from omni_jobs.tenants.tenant_store import Tenants
from omni_jobs.views import Counts, EventView, JobView
from tests.integration.api_server import BEHIND_A_PROXY, ApiServer, serve
from tests.integration.job_steps import pass_time
from tests.integration.served_jobs import claimed, completed, failed

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update=BEHIND_A_PROXY)


def post(api: ApiServer, body: dict[str, Any] | None = None, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.http.post("/v1/jobs", json=body or ECHO, headers=named)


def submitted(api: ApiServer, body: dict[str, Any] | None = None, **headers: str) -> JobView:
    answer = post(api, body, **headers)
    assert answer.status_code == 202, answer.text
    return JobView.model_validate(answer.json())


def refusal(answer: httpx2.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"].get("field")


# Waiting for the end. Each of these waits is longer than the client's time-out.


def waiting(api: ApiServer, pool: ThreadPoolExecutor, job_id: str) -> Future[httpx2.Response]:
    """Send a request that waits for the job's end. Return once the server polls for it."""
    begun = threading.Event()
    glances = api.services.jobs.glances

    def seen(job_ids: Sequence[str], with_runs: Collection[str]) -> Mapping[str, Glance]:
        if job_id in job_ids:
            begun.set()
        return glances(job_ids, with_runs)

    api.services.jobs.glances = seen  # type: ignore[method-assign]
    url = f"http://{api.host}:{api.port}/v1/jobs/{job_id}?wait=60"  # not by the server's own client: it closes first
    answer = pool.submit(httpx2.get, url, timeout=30, trust_env=False)
    assert begun.wait(30)
    return answer


def test_a_request_waits_for_the_end(api: ApiServer) -> None:
    done, others = submitted(api), submitted(api)
    with ThreadPoolExecutor(2) as pool:
        answer, other = waiting(api, pool, done.id), waiting(api, pool, others.id)
        completed(api, done.id)
        assert JobView.model_validate(answer.result().json()) == api.services.jobs.get(done.id)
        assert not other.done()
        api.http.post(f"/v1/jobs/{others.id}/cancel")
        assert other.result().json()["status"] == "cancelled"


def test_a_wait_for_what_has_ended_is_none(api: ApiServer) -> None:
    job = completed(api, submitted(api).id)
    assert api.http.get(f"/v1/jobs/{job.id}", params={"wait": 60}).json()["status"] == "completed"


def test_a_wait_ends_with_its_time(api: ApiServer) -> None:
    job = submitted(api)
    answer = api.http.get(f"/v1/jobs/{job.id}", params={"wait": 0.2})
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")


def test_a_job_that_is_deleted_is_waited_for_no_longer(api: ApiServer) -> None:
    job = submitted(api)
    with ThreadPoolExecutor(1) as pool:
        answer = waiting(api, pool, job.id)
        delete = text("DELETE FROM jobs WHERE id = :job")
        api.services.db.run(lambda tx: tx.execute(delete, {"job": job.id}))
        assert answer.result().status_code == 404


def test_a_wait_is_checked(api: ApiServer) -> None:
    job = submitted(api)
    for wait in ("-1", "60.1", "nan", "inf", "soon", ""):
        assert refusal(api.http.get(f"/v1/jobs/{job.id}", params={"wait": wait})) == (422, "wait"), wait
    unknown = f"/v1/jobs/job-{'0' * 32}"
    assert refusal(api.http.get(unknown, params={"wait": 60})) == (404, "job_id")


def test_a_server_that_stops_lets_those_go_who_wait(settings: Settings) -> None:
    with ThreadPoolExecutor(1) as pool:
        with serve(settings) as api:
            job = submitted(api)
            answer = waiting(api, pool, job.id)
        assert answer.result().json()["status"] == "queued"


# Deadlines


@pytest.mark.parametrize(("header", "seconds"), [("90", 90), ("15m", 900), ("2h", 7200)])
def test_cancel_after(api: ApiServer, header: str, seconds: float) -> None:
    job = submitted(api, Cancel_After=header)
    assert job.expires_at is not None
    assert (job.expires_at - job.created_at).total_seconds() == pytest.approx(seconds, abs=1)


def test_expires_at(api: ApiServer) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    for value in (moment.isoformat(), moment.timestamp()):
        assert submitted(api, {**ECHO, "expires_at": value}).expires_at == moment
    assert submitted(api).expires_at is None


def test_deadlines_that_are_refused(api: ApiServer) -> None:
    now = time.time()
    assert refusal(post(api, Cancel_After="tomorrow")) == (422, "Cancel-After")
    for value in (now - 5, now + 31 * 86_400, "2020-01-01T00:00:00Z", "soon"):
        assert refusal(post(api, {**ECHO, "expires_at": value})) == (422, "expires_at")
    assert refusal(post(api, {**ECHO, "expires_at": now + 60}, Cancel_After="60")) == (422, "expires_at")
    assert api.services.jobs.list().jobs == []


def test_a_submit_sent_again_after_its_deadline_gives_its_job(api: ApiServer) -> None:
    body = {**ECHO, "expires_at": time.time() + 1.5}
    first = submitted(api, body, Idempotency_Key="k")
    while time.time() <= body["expires_at"]:
        time.sleep(0.1)
    assert refusal(post(api, body)) == (422, "expires_at")
    again = post(api, body, Idempotency_Key="k")
    assert (again.status_code, again.json()["id"]) == (200, first.id)


def test_a_job_that_waited_too_long_says_so(api: ApiServer) -> None:
    job = submitted(api, Cancel_After="60")
    pass_time(api.services.db, 61)
    assert api.services.jobs.rescue().expired == 1
    view = api.http.get(f"/v1/jobs/{job.id}").json()
    assert (view["status"], view["error"]["code"]) == ("expired", "deadline_exceeded")
    assert view["started_at"] is None
    jobs = api.http.get("/v1/jobs", params={"error_code": "deadline_exceeded"}).json()["jobs"]
    assert [listed["id"] for listed in jobs] == [job.id]


# Tenants


def test_the_tenant_is_what_the_header_says(api: ApiServer) -> None:
    assert submitted(api, X_Tenant="acme.eu-1_b").tenant == "acme.eu-1_b"
    assert submitted(api).tenant == "default"
    for value in ("", "a b", "x" * 65, "a/b", "ä".encode().decode("latin-1")):
        answer = api.http.post("/v1/jobs", json=ECHO, headers=[(b"X-Tenant", value.encode("latin-1"))])
        assert refusal(answer) == (422, "X-Tenant"), value
    twice = api.http.post("/v1/jobs", json=ECHO, headers=[("X-Tenant", "a"), ("X-Tenant", "b")])
    assert refusal(twice) == (422, "X-Tenant")


def test_no_tenant_finds_or_probes_anothers_key(api: ApiServer) -> None:
    first = submitted(api, X_Tenant="a", Idempotency_Key="k")
    other = {**ECHO, "messages": [{"role": "user", "content": "Another"}]}
    assert post(api, other, X_Tenant="a", Idempotency_Key="k").status_code == 422
    mine = submitted(api, other, X_Tenant="b", Idempotency_Key="k")
    assert (mine.tenant, mine.id != first.id) == ("b", True)
    assert post(api, X_Tenant="a", Idempotency_Key="k").json()["id"] == first.id


def test_a_bulks_lines_have_keys_that_no_client_can_spell(api: ApiServer) -> None:
    bulk = {"Content-Type": "application/jsonl", "Idempotency-Key": "K"}
    taken = [submitted(api, Idempotency_Key=key) for key in ("K#1", "K", "K.1", "K-1")]
    for key in ("K 1", "K\t1", "K\xa01"):
        headers = [(b"Idempotency-Key", key.encode("latin-1"))]
        assert refusal(api.http.post("/v1/jobs", json=ECHO, headers=headers)) == (422, "Idempotency-Key"), key
    other = {**ECHO, "messages": [{"role": "user", "content": "Another"}]}
    answers = [
        json.loads(api.http.post("/v1/jobs/bulk", content=json.dumps(other), headers=bulk).text.splitlines()[0])
        for _ in range(2)
    ]
    assert [answer.get("created") for answer in answers] == [True, False]
    assert answers[0]["id"] not in {job.id for job in taken}


def test_behind_a_proxy_a_tenant_sees_its_own_jobs_and_has_its_limits(api: ApiServer) -> None:
    Tenants(api.services.db).create("acme", limits={"queued_jobs": 1})
    ours, theirs, nobodys = submitted(api, X_Tenant="acme"), submitted(api, X_Tenant="globex"), submitted(api)
    assert post(api, X_Tenant="acme").status_code == 429
    for tenant, seen in (("acme", [ours]), ("globex", [theirs]), (None, [nobodys, theirs, ours])):
        headers = {} if tenant is None else {"X-Tenant": tenant}
        listed = api.http.get("/v1/jobs", headers=headers).json()["jobs"]
        assert [job["id"] for job in listed] == [job.id for job in seen]
        for job in (ours, theirs, nobodys):
            status = api.http.get(f"/v1/jobs/{job.id}", headers=headers).status_code
            assert status == (200 if job in seen else 404)
        assert api.http.get("/v1/status", headers=headers).json()["jobs"]["queued"] == len(seen)


def test_without_the_setting_no_header_is_believed(settings: Settings) -> None:
    with serve(settings.model_copy(update={"auth": None, "tenant_header": None})) as api:
        assert submitted(api, X_Tenant="acme").tenant == "default"


# Back-pressure


def test_as_many_wait_as_may_wait(settings: Settings) -> None:
    limits = {"max_queued_jobs": 5, "max_queued_jobs_per_tenant": 3}
    with serve(settings.model_copy(update=limits)) as api:
        first = submitted(api, Idempotency_Key="first", X_Tenant="a")
        for tenant in ("a", "a", "b", "b"):
            submitted(api, X_Tenant=tenant)
        answer = post(api, X_Tenant="c")
        assert answer.status_code == 429
        assert answer.json()["error"] == {
            "code": "too_many_jobs",
            "message": "as many jobs wait in pipeline echo as may wait",
            "type": "rate_limit_error",
            "param": None,
            "field": None,
            "retryable": True,
        }
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        again = post(api, Idempotency_Key="first", X_Tenant="a")
        assert (again.status_code, again.json()["id"]) == (200, first.id)
        assert post(api, Idempotency_Key="second").status_code == 429

        api.http.post(f"/v1/jobs/{first.id}/cancel")
        claimed(api, first_queued(api))
        deadline = time.monotonic() + 30
        while (answer := post(api, X_Tenant="a")).status_code == 429:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.1)
        assert answer.status_code == 202
        assert len(api.services.jobs.list(limit=100).jobs) == 6


def test_each_tenant_may_have_so_many(settings: Settings) -> None:
    with serve(settings.model_copy(update={"max_queued_jobs_per_tenant": 2})) as api:
        for tenant in ("a", "a", "b"):
            submitted(api, X_Tenant=tenant)
        answer = post(api, X_Tenant="a")
        assert answer.status_code == 429
        assert "tenant a" in answer.json()["error"]["message"]
        submitted(api, X_Tenant="b")


def first_queued(api: ApiServer) -> str:
    return next(job.id for job in reversed(api.services.jobs.list(limit=100).jobs) if job.status == JobState.QUEUED)


def test_many_clients_on_two_servers_pass_the_bound_by_little(settings: Settings) -> None:
    limit, servers = 40, 2
    limited = settings.model_copy(update={"max_queued_jobs": limit})
    with serve(limited) as one, serve(limited) as other, ThreadPoolExecutor(32) as pool:

        def send(number: int) -> int:
            return post((one, other)[number % servers]).status_code

        answers = list(pool.map(send, range(300)))
        assert set(answers) == {202, 429}
        waiting = one.services.jobs.backlog()["echo", "default"]
        assert waiting == answers.count(202)
        assert limit <= waiting <= limit * servers
        # Each knows of the other's jobs after its next count, and takes no more.
        time.sleep(1.1)
        for api in (one, other):
            post(api)
            api.wait_for_count()
        before = one.services.jobs.backlog()["echo", "default"]
        assert before <= limit * servers
        assert set(pool.map(send, range(60))) == {429}
        assert one.services.jobs.backlog()["echo", "default"] == before


# Retry


def test_a_failed_job_is_sent_on_again(api: ApiServer) -> None:
    job = submitted(api, Cancel_After="60")
    assert failed(api, job.id).status == JobState.FAILED
    answer = api.http.post(f"/v1/jobs/{job.id}/retry")
    assert answer.status_code == 200, answer.text
    view = JobView.model_validate(answer.json())
    assert (view.status, view.retries, view.expires_at, view.error) == (JobState.QUEUED, 1, None, None)
    assert [error.code for error in view.stages[0].errors] == ["model_error"]
    assert completed(api, job.id).status == JobState.COMPLETED


def test_from_a_stage_on(api: ApiServer) -> None:
    job = submitted(api)
    completed(api, job.id)
    path = f"/v1/jobs/{job.id}/retry"
    assert refusal(api.http.post(path)) == (409, "from_stage")
    assert refusal(api.http.post(path, params={"from_stage": "third"})) == (422, "from_stage")
    assert refusal(api.http.post(path, params={"from_stage": "x" * 101})) == (422, "from_stage")
    answer = api.http.post(path, params={"from_stage": "first"})
    assert answer.status_code == 200, answer.text
    assert [stage["status"] for stage in answer.json()["stages"]] == ["queued", "pending"]
    assert refusal(api.http.post(path)) == (409, "job_id")


def test_a_retry_is_bounded(settings: Settings) -> None:
    with serve(settings.model_copy(update={"max_queued_jobs": 1})) as api:
        job = submitted(api)
        failed(api, job.id)
        api.wait_for_count()
        deadline = time.monotonic() + 120  # a count that took long on a busy host is repeated a hundred times later
        while (other := post(api)).status_code == 429:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert api.http.post(f"/v1/jobs/{job.id}/retry").status_code == 429
        api.http.post(f"/v1/jobs/{other.json()['id']}/cancel")
        while api.http.post(f"/v1/jobs/{job.id}/retry").status_code == 429:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert api.services.jobs.get(job.id).status == JobState.QUEUED


# Delete, events, what is gone


def test_delete(api: ApiServer) -> None:
    job = submitted(api)
    assert refusal(api.http.delete(f"/v1/jobs/{job.id}")) == (409, "job_id")
    completed(api, job.id)
    answer = api.http.delete(f"/v1/jobs/{job.id}")
    assert (answer.status_code, answer.content) == (204, b"")
    for path in ("", "/events", "/artifacts/audio.wav"):
        assert api.http.get(f"/v1/jobs/{job.id}{path}").status_code == 404
    assert api.http.delete(f"/v1/jobs/{job.id}").status_code == 204  # sent again, while its objects are there yet
    assert api.http.delete(f"/v1/jobs/{job.id[:-4]}0000").status_code == 404


@pytest.mark.parametrize("charset", ["", "; charset=UTF-8"])
def test_a_part_of_text_is_read_as_utf8(api: ApiServer, charset: str) -> None:
    part = '{"model": "echo", "messages": [{"role": "user", "content": "x"}], "metadata": {"a": "漢é😀"}}'
    body = f'--x\r\nContent-Disposition: form-data; name="request"\r\n\r\n{part}\r\n--x--\r\n'.encode()
    headers = {"Content-Type": f"multipart/form-data; boundary=x{charset}"}
    made = api.http.post("/v1/jobs", content=body, headers=headers)
    assert (made.status_code, made.json()["metadata"]) == (202, {"a": "漢é😀"}), made.text


def test_events(api: ApiServer) -> None:
    job = submitted(api)
    assert api.http.get(f"/v1/jobs/{job.id}/events").json() == []
    failed(api, job.id)
    api.http.post(f"/v1/jobs/{job.id}/retry")
    api.http.post(f"/v1/jobs/{job.id}/cancel")
    events = [EventView.model_validate(event) for event in api.http.get(f"/v1/jobs/{job.id}/events").json()]
    assert [event.type for event in events] == ["job.failed", "job.retried", "job.cancelled"]
    assert events[0].data["error"]["code"] == "model_error"


def test_an_artifact_whose_time_is_over_is_gone(api: ApiServer) -> None:
    job = submitted(api)
    completed(api, job.id)
    path = f"/v1/jobs/{job.id}/artifacts/audio.wav"
    assert api.http.get(path).content == b"RIFF"
    pass_time(api.services.db, 8 * 86_400)
    api.services.jobs.prune(Retention.of(api.services.settings))
    answer = api.http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "gone")
    assert api.http.get(f"/v1/jobs/{job.id}").json()["artifacts"] == []


# The command line


def test_the_commands(api: ApiServer) -> None:
    url = ["--url", f"http://{api.host}:{api.port}"]

    def run(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, [*words, *url])
        assert result.exit_code == code, result.output
        return result.stdout.strip()

    job_id = run("submit", "-p", "echo", "Hello", "--cancel-after", "15m")
    assert api.services.jobs.get(job_id).expires_at is not None
    assert run("delete", job_id, code=1) == ""
    failed(api, job_id)
    shown = run("status", job_id)
    assert "model_error: the prompt broke it" in shown
    assert "w-first" in shown
    assert job_id in run("list", "--error-code", "model_error")
    assert job_id not in run("list", "--error-code", "quarantined")
    assert run("retry", job_id) == "queued"
    assert run("retry", job_id, code=1) == ""
    completed(api, job_id)
    assert run("retry", job_id, "--from-stage", "third", code=2) == ""
    types = [event["type"] for event in json.loads(run("events", job_id, "--json"))]
    assert types == ["job.failed", "job.retried", "job.completed"]
    assert "job.retried" in run("events", job_id)
    assert run("delete", job_id) == ""
    run("status", job_id, code=4)


def test_a_job_that_cannot_be_deleted_spares_no_other(api: ApiServer) -> None:
    """Sent again after an outage, the command finds some of the jobs deleted already."""
    ended, waiting, other = (submitted(api).id for _ in range(3))
    for job_id in (ended, other):
        failed(api, job_id)
    result = CliRunner().invoke(
        app, ["delete", "job-0", waiting, ended, "job-1", other, "--url", f"http://{api.host}:{api.port}"]
    )
    assert result.exit_code == Exit.NOT_FOUND
    assert [said.split(": ")[1] for said in result.stderr.splitlines()] == ["job-0", waiting, "job-1"]
    assert [job["id"] for job in api.http.get("/v1/jobs").json()["jobs"]] == [waiting]


def test_slow_counts_hold_up_no_list_of_another_tenant(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tenants look at the status, each of whom has much to count."""
    job = submitted(api, X_Tenant="quick")
    counted, go_on = threading.Semaphore(0), threading.Event()
    counts = api.services.jobs.counts

    def slow(tenant: str | None = None) -> Counts:
        counted.release()
        assert go_on.wait(60)
        return counts(tenant)

    monkeypatch.setattr(api.services.jobs, "counts", slow)
    url = f"http://{api.host}:{api.port}/v1/status"
    with ThreadPoolExecutor(20) as pool:
        looks = [pool.submit(httpx2.get, url, headers={"X-Tenant": f"slow-{n}"}, timeout=90) for n in range(20)]
        try:
            assert counted.acquire(timeout=30)
            while counted.acquire(timeout=1):  # until as many count at once as may
                pass
            listed = api.http.get("/v1/jobs", headers={"X-Tenant": "quick"})
            assert [each["id"] for each in listed.json()["jobs"]] == [job.id]
        finally:
            go_on.set()
        assert {look.result().status_code for look in looks} == {200}
