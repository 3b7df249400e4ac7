"""Stages over HTTP and by the command: pauses, why jobs wait, and how good the estimates were."""

import json

import pytest
from typer.testing import CliRunner, Result

from omni_jobs.cli import Exit, app
from omni_jobs.client import Client
from omni_jobs.errors import NotFound
from omni_jobs.jobs import Jobs, NewWorker
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"pipelines": ("echo",)})


def register(jobs: Jobs, api: ApiServer) -> None:
    echo = api.services.pipelines["echo"]
    worker = NewWorker("w", "w", echo.stage_id("first"), "host", 1, 1, echo.version)
    jobs.register_worker(worker, 60.0)


def paused(api: ApiServer) -> dict[str, bool]:
    [pipeline] = api.http.get("/v1/pipelines").json()["pipelines"]
    return {stage["name"]: stage["paused_at"] is not None for stage in pipeline["stages"]}


def test_a_stage_is_paused_and_resumed(api: ApiServer) -> None:
    register(api.services.jobs, api)
    job_id = api.http.post("/v1/jobs", json=ECHO).json()["id"]
    assert paused(api) == {"first": False, "second": False}
    answer = api.http.post("/v1/pipelines/echo/stages/first/pause")
    assert answer.status_code == 200
    assert (answer.json()["pipeline"], answer.json()["stage"]) == ("echo", "first")
    assert api.http.post("/v1/pipelines/echo/stages/first/pause").json() == answer.json()
    assert paused(api) == {"first": True, "second": False}
    assert api.http.get(f"/v1/jobs/{job_id}").json()["waiting"]["reason"] == "paused"
    status = api.http.get("/v1/status").json()
    assert {load["stage"]: load["paused"] for load in status["stages"]} == {"first": True, "second": False}
    assert status["recent"][0]["waiting"]["reason"] == "paused"
    before = api.services.broker.depth("echo.first")
    for _ in range(2):
        assert api.http.post("/v1/pipelines/echo/stages/first/resume").json()["paused_at"] is None
    assert paused(api) == {"first": False, "second": False}
    api.services.relay.close()  # rings for what waits
    assert api.services.broker.depth("echo.first") > before


@pytest.mark.parametrize(
    "path", ["nope/stages/first", "echo/stages/nope", "qwen2_5_omni/stages/talker", "echo/stages/%00"]
)
@pytest.mark.parametrize("what", ["pause", "resume"])
def test_an_unknown_stage_is_a_404_and_changes_nothing(api: ApiServer, path: str, what: str) -> None:
    answer = api.http.post(f"/v1/pipelines/{path}/{what}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert api.services.jobs.paused_stages() == {}


def test_a_waiting_job_says_for_how_long(api: ApiServer) -> None:
    jobs = api.services.jobs
    register(jobs, api)
    ids = [api.http.post("/v1/jobs", json=ECHO).json()["id"] for _ in range(3)]
    jobs.claim("w", 1)
    jobs.renew("w", 60.0, run_s=10.0)
    waiting = api.http.get(f"/v1/jobs/{ids[-1]}").json()["waiting"]
    assert (waiting["reason"], waiting["stage"], waiting["position"]) == ("turn", "first", 1)
    assert 0 < waiting["estimate"]["low_s"] < 20 < waiting["estimate"]["high_s"]
    assert waiting["estimate"]["basis"]
    listed = api.http.get("/v1/jobs").json()["jobs"][0]["waiting"]
    assert (listed["reason"], listed["position"], listed["estimate"]) == ("turn", None, None)


def test_how_good_the_estimates_were_is_published(api: ApiServer) -> None:
    assert api.http.get("/v1/estimates").json() == []
    jobs = api.services.jobs
    register(jobs, api)
    for _ in range(3):
        api.http.post("/v1/jobs", json=ECHO)
    jobs.claim("w", 1)
    jobs.renew("w", 60.0, run_s=10.0)
    jobs.calibrate()
    jobs.claim("w", 10)
    jobs.calibrate()
    [found] = api.http.get("/v1/estimates").json()
    assert (found["pipeline"], found["stage"], found["held"], found["share"]) == ("echo", "first", 0, 0.0)
    assert found["estimates"] > 0, "they started at once, so none has held"


# The client and the command.


def run(api: ApiServer, *arguments: str) -> Result:
    url = f"http://{api.host}:{api.port}"
    return CliRunner().invoke(app, ["stages", *arguments, "--url", url], env={"COLUMNS": "200"})


def test_the_client_pauses_and_resumes(api: ApiServer) -> None:
    with Client(f"http://{api.host}:{api.port}") as client:
        assert client.set_paused("echo", "first", True).paused_at is not None
        assert client.pipelines()[0].stages[0].paused_at is not None
        assert client.set_paused("echo", "first", False).paused_at is None
        assert client.calibrations() == []
        with pytest.raises(NotFound):
            client.set_paused("echo", "../..", True)


def test_the_command_pauses_resumes_and_lists(api: ApiServer) -> None:
    assert run(api, "pause", "echo", "first").output == "echo first: paused\n"
    assert "echo" in run(api, "list").output
    listed = json.loads(run(api, "list", "--json").output)
    assert [(each["stage"], each["paused_at"] is not None) for each in listed] == [("first", True), ("second", False)]
    assert [each["calibration"] for each in listed] == [None, None]
    assert json.loads(run(api, "resume", "echo", "first", "--json").output)["paused_at"] is None
    assert run(api, "resume", "echo", "first").output == "echo first: open\n"
    refused = run(api, "pause", "echo", "nope")
    assert refused.exit_code == Exit.NOT_FOUND
    assert "no stage 'nope'" in refused.output
