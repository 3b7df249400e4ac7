"""Workers over HTTP and by the command: drained, resumed, listed."""

import json

import pytest
from typer.testing import CliRunner, Result

from omni_jobs.cli import Exit, app
from omni_jobs.client import Client
from omni_jobs.jobs import NewWorker
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
SLOT = "echo.first-1@gpu-a"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"pipelines": ("echo",)})


@pytest.fixture(autouse=True)
def worker(api: ApiServer) -> None:
    register(api, "w", SLOT)


def register(api: ApiServer, worker_id: str, slot: str) -> None:
    echo = api.services.pipelines["echo"]
    worker = NewWorker(worker_id, slot, echo.stage_id("first"), "host", 1, 4, echo.version)
    api.services.jobs.register_worker(worker, 60.0)


@pytest.mark.parametrize("name", ["w", SLOT])
def test_a_worker_is_drained_and_resumed(api: ApiServer, name: str) -> None:
    answer = api.http.post(f"/v1/workers/{name}/drain")
    assert answer.status_code == 200
    told = answer.json()
    assert (told["id"], told["slot"], told["pipeline"], told["stage"]) == ("w", SLOT, "echo", "first")
    assert told["drained_at"] is not None
    assert api.http.post(f"/v1/workers/{name}/drain").json() == told
    [shown] = api.http.get("/v1/status").json()["workers"]
    assert shown["drained_at"] == told["drained_at"]
    assert api.services.jobs.renew("w", 60.0).is_paused
    job_id = api.http.post("/v1/jobs", json=ECHO).json()["id"]
    waiting = api.http.get(f"/v1/jobs/{job_id}").json()["waiting"]
    assert (waiting["reason"], "drained" in waiting["message"]) == ("no_worker", True)
    before = api.services.broker.depth("echo.first")
    for _ in range(2):
        assert api.http.post(f"/v1/workers/{name}/resume").json() == {**told, "drained_at": None}
    assert not api.services.jobs.renew("w", 60.0).is_paused
    api.services.relay.close()  # rings for what waits
    assert api.services.broker.depth("echo.first") > before
    assert [(act.action, act.target) for act in api.services.jobs.acts()] == [("undrain", SLOT), ("drain", SLOT)]


@pytest.mark.parametrize("name", ["nobody", "%00", "%20", "..", "w%2Fx", "x" * 300])
@pytest.mark.parametrize("what", ["drain", "resume"])
def test_an_unknown_worker_is_a_404_and_changes_nothing(api: ApiServer, name: str, what: str) -> None:
    answer = api.http.post(f"/v1/workers/{name}/{what}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert [each.drained_at for each in api.services.jobs.workers()] == [None]
    assert api.services.jobs.acts() == []


def test_a_drained_worker_serves_nobody(api: ApiServer) -> None:
    """Neither as a worker of its stage nor with slots that it does not use."""

    def load() -> tuple[int, int, int]:
        [found] = [each for each in api.http.get("/v1/status").json()["stages"] if each["stage"] == "first"]
        return found["workers"], found["drained"], found["slots"]

    register(api, "other", "other@gpu-a")
    api.http.post("/v1/jobs", json=ECHO)
    api.services.jobs.claim("w", 1)
    assert load() == (2, 0, 8)
    api.http.post("/v1/workers/w/drain")
    assert load() == (1, 1, 5)


# The client and the command.


def run(api: ApiServer, *arguments: str) -> Result:
    url = f"http://{api.host}:{api.port}"
    return CliRunner().invoke(app, [*arguments, "--url", url], env={"COLUMNS": "200"})


def test_the_client_drains_and_resumes(api: ApiServer) -> None:
    with Client(f"http://{api.host}:{api.port}") as client:
        assert client.set_drained(SLOT, True).drained_at is not None
        assert client.set_drained("w", False).drained_at is None


def test_the_command_drains_resumes_and_lists(api: ApiServer) -> None:
    assert run(api, "workers", "drain", SLOT).output == f"{SLOT}: drained\n"
    assert SLOT in run(api, "workers", "list").output
    [listed] = json.loads(run(api, "workers", "list", "--json").output)
    assert (listed["id"], listed["drained_at"] is not None) == ("w", True)
    assert json.loads(run(api, "workers", "resume", "w", "--json").output)["drained_at"] is None
    assert run(api, "workers", "resume", "w").output == f"{SLOT}: not drained\n"
    refused = run(api, "workers", "drain", "nobody")
    assert refused.exit_code == Exit.NOT_FOUND
    assert "no worker 'nobody'" in refused.output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), Exit.USAGE, "name a worker, or a host"),
        ((SLOT, "--host", "host"), Exit.USAGE, "name a worker, or a host"),
        ((SLOT, "--timeout", "1"), Exit.USAGE, "bounds --wait"),
        (("--host", "elsewhere"), Exit.NOT_FOUND, "hosts with workers: host"),
        (("--host", "host", "--wait", "--timeout", "0"), Exit.TIMEOUT, "1 to learn that they are drained"),
    ],
)
def test_a_drain_says_what_is_wrong(api: ApiServer, arguments: tuple[str, ...], code: int, said: str) -> None:
    refused = run(api, "workers", "drain", *arguments)
    assert (refused.exit_code, said in refused.output) == (code, True), refused.output


def test_a_host_is_drained_and_resumed(api: ApiServer) -> None:
    register(api, "other", "other@gpu-a")
    assert run(api, "workers", "drain", "--host", "host").output == f"{SLOT}: drained\nother@gpu-a: drained\n"
    assert all(each.drained_at for each in api.services.jobs.workers())
    shown = json.loads(run(api, "workers", "resume", "--host", "host", "--json").output)
    assert [each["drained_at"] for each in shown] == [None, None]


def test_a_job_is_advanced(api: ApiServer) -> None:
    first, second, third = (api.http.post("/v1/jobs", json=ECHO).json()["id"] for _ in range(3))
    assert run(api, "advance", third).output == "queued: 0 of your own stage runs stand before it at stage first\n"
    answer = api.http.post(f"/v1/jobs/{third}/advance")
    assert (answer.status_code, answer.json()["id"], answer.json()["status"]) == (200, third, "queued")
    assert [claim.job_id for claim in api.services.jobs.claim("w", 2).claims] == [third, first]
    begun = api.http.post(f"/v1/jobs/{third}/advance")
    assert (begun.status_code, begun.json()["error"]["code"]) == (409, "conflict")
    assert run(api, "advance", third).exit_code == Exit.FAILED
    gone = api.http.post(f"/v1/jobs/{third[:-4]}0000/advance")
    assert (gone.status_code, gone.json()["error"]["field"]) == (404, "job_id")
    counted = api.http.post("/v1/jobs/advance", json={"pipeline": "echo", "dry_run": True}).json()
    assert (counted["action"], counted["matched"], counted["changed"]) == ("advance", 1, 0)
    done = json.loads(run(api, "advance", "--filter", "pipeline=echo", "--yes", "--json").output)
    assert (done["matched"], done["changed"]) == (1, 1)
    refused = api.http.post("/v1/jobs/advance", json={"status": "completed"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "status")
    assert second in {act.target for act in api.services.jobs.acts()}


def test_many_advanced_jobs_keep_their_order(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over several groups, and over several requests."""
    monkeypatch.setattr("omni_jobs.api.many_jobs.GROUP", 2)
    body = {**ECHO, "metadata": {"urgent": "yes"}}
    others = [api.http.post("/v1/jobs", json=ECHO).json()["id"] for _ in range(2)]
    urgent = [api.http.post("/v1/jobs", json=body).json()["id"] for _ in range(5)]
    wanted = {"metadata": {"urgent": "yes"}, "limit": 3}
    first = api.http.post("/v1/jobs/advance", json=wanted).json()
    rest = api.http.post("/v1/jobs/advance", json={**wanted, "cursor": first["next_cursor"]}).json()
    assert (first["changed"], rest["changed"], rest["next_cursor"]) == (3, 2, None)
    assert [claim.job_id for claim in api.services.jobs.claim("w", 7).claims] == [*urgent, *others]
