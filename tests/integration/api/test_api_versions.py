"""Versions of pipelines over HTTP and by the command: which takes new jobs, what is left, when workers may go."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from omni_jobs.cli import Exit, app
from omni_jobs.client import AsyncClient, Client
from omni_jobs.doctor import examine
from omni_jobs.errors import VersionChanged, VersionDraining
from omni_jobs.jobs import NewWorker
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer, serve, server_settings
from tests.integration.echo_stack import PIPELINE

NEXT = PIPELINE.replace('version: "1"', 'version: "2"')
EDITED = PIPELINE.replace("    produces: text\n", "    produces: text\n    parameters: {delay_s: 0.01}\n")


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "echo.yaml").write_text(PIPELINE)
    (configs / "next.yaml").write_text(NEXT)
    return configs


@pytest.fixture
def settings(database_url: str, valkey_url: str, tmp_path: Path, configs: Path) -> Settings:
    return server_settings(tmp_path, valkey_url, database_url=database_url, stage_configs=configs)


@pytest.fixture
def api(settings: Settings) -> Iterator[ApiServer]:
    with serve(settings) as server:
        yield server


def submit(api: ApiServer, model: str) -> Any:
    return api.http.post("/v1/jobs", json={"model": model, "messages": [{"role": "user", "content": "x"}]})


def version_of(api: ApiServer, model: str) -> str:
    """Submit a job, and return the version that it got."""
    answer = submit(api, model)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["pipeline_version"])


def versions(api: ApiServer) -> dict[str, dict[str, Any]]:
    shown = api.http.get("/v1/pipelines/versions").json()["versions"]
    return {f"{each['pipeline']}@{each['version']}": each for each in shown}


def settle(api: ApiServer) -> None:
    """Let it be long ago that versions began to drain."""
    api.services.db.run(lambda tx: tx.execute(text("UPDATE pipeline_versions SET draining_at = draining_at - 60")))


def test_a_draining_version_takes_no_new_jobs_and_the_name_means_another_one(api: ApiServer) -> None:
    assert [version_of(api, model) for model in ("echo", "echo@1", "echo@2")] == ["2", "1", "2"]
    told = api.http.post("/v1/pipelines/echo@2/drain").json()
    assert (told["state"], told["is_default"], told["queued"], told["workers_may_go"]) == ("draining", False, 2, False)
    assert api.http.post("/v1/pipelines/echo@2/drain").json() == told, "a second drain changed something"
    assert version_of(api, "echo") == "1"
    refused = submit(api, "echo@2")
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["field"]) == (409, "version_draining", "model")
    assert "name echo@1" in error["message"]
    troubles = {each["version"]: each["trouble"] for each in api.http.get("/v1/pipelines").json()["pipelines"]}
    assert (troubles["1"], troubles["2"]["code"]) == (None, "version_draining")
    assert api.http.get("/readyz").status_code == 200

    api.http.post("/v1/pipelines/echo@1/drain")
    for model in ("echo", "echo@1"):
        assert "no other version takes any" in submit(api, model).json()["error"]["message"]
    assert api.http.post("/v1/pipelines/echo@2/serve").json()["state"] == "serving"
    assert version_of(api, "echo") == "2"
    acts = [(act.action, act.target) for act in api.services.jobs.acts()]
    assert acts == [("serve_version", "echo@2"), ("drain_version", "echo@1"), ("drain_version", "echo@2")]


def test_every_view_goes_by_the_version_that_takes_jobs(api: ApiServer) -> None:
    api.http.post("/v1/pipelines/echo@2/drain")
    answer = api.http.post("/v1/responses", json={"model": "echo", "input": "x", "background": True})
    assert answer.status_code == 200, answer.text
    assert [job.pipeline_version for job in api.services.jobs.list(limit=5).jobs] == ["1"]
    refused = api.http.post("/v1/responses", json={"model": "echo@2", "input": "x", "background": True})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "version_draining")
    job_id = submit(api, "echo@1").json()["id"]
    api.http.post("/v1/pipelines/echo@1/drain")
    fork = api.http.post(f"/v1/jobs/{job_id}/fork", json={"from_stage": "first"})
    assert (fork.status_code, fork.json()["error"]["code"]) == (409, "version_draining")
    api.http.post(f"/v1/jobs/{job_id}/cancel")
    for params in ({}, {"version": "1"}):
        retry = api.http.post(f"/v1/jobs/{job_id}/retry", params=params)
        assert (retry.status_code, retry.json()["error"]["code"]) == (409, "version_draining")
    many = api.http.post("/v1/jobs/retry", json={"status": "cancelled"}).json()
    assert (many["changed"], [each["code"] for each in many["skipped"]]) == (0, ["version_draining"])
    assert api.http.get(f"/v1/jobs/{job_id}").json()["status"] == "cancelled"


def test_another_server_learns_of_it_while_it_takes_jobs(api: ApiServer, settings: Settings) -> None:
    with serve(settings) as other:
        assert version_of(other, "echo") == "2"
        api.http.post("/v1/pipelines/echo@2/drain")
        for _ in range(10_000):  # as fast as it answers, for two seconds at the most
            if version_of(other, "echo") == "1":
                break
        else:
            pytest.fail("the other server never learned of the drain")


def test_what_is_left_is_told_until_the_workers_may_go(api: ApiServer) -> None:
    job_id = submit(api, "echo@1").json()["id"]
    echo = api.services.pipelines["echo@1"]
    worker = NewWorker("w", "w", echo.stage_id("first"), "host", 1, 4, echo.version)
    api.services.jobs.register_worker(worker, 60.0)
    api.http.post("/v1/pipelines/echo@1/drain")
    settle(api)
    left = versions(api)["echo@1"]
    assert (left["queued"], left["in_progress"], left["workers"], left["workers_may_go"]) == (1, 0, 1, False)
    api.services.jobs.claim("w", 1)
    assert versions(api)["echo@1"]["in_progress"] == 1
    waits = run(api, "drain", "echo@1", "--wait", "--timeout", "0")
    assert (waits.exit_code, "1 jobs left" in waits.output) == (Exit.TIMEOUT, True), waits.output
    api.services.jobs.retire_worker("w")
    api.http.post(f"/v1/jobs/{job_id}/cancel")
    may_go = versions(api)["echo@1"]
    assert (may_go["workers_may_go"], may_go["workers"], may_go["in_progress"]) == (True, 0, 0)
    assert not versions(api)["echo@2"]["workers_may_go"], "it is not draining"
    ended = run(api, "drain", "echo@1", "--wait", "--json")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["workers_may_go"]


def test_a_version_that_has_just_begun_to_drain_keeps_its_workers(api: ApiServer) -> None:
    """Another server may take a job of it for some seconds."""
    versions(api)
    assert not api.http.post("/v1/pipelines/echo@1/drain").json()["workers_may_go"]


def test_a_version_that_was_another_file_takes_no_jobs_while_somebody_has_that(
    api: ApiServer, settings: Settings, configs: Path
) -> None:
    job_id = submit(api, "echo@1").json()["id"]
    (configs / "echo.yaml").write_text(EDITED)
    edited = load_pipelines(configs)["echo@1"]
    with serve(settings) as other:
        refused = submit(other, "echo@1")
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (503, "version_changed")
        assert "raise `version`" in error["message"]
        assert edited.digest[:16] in error["message"]
        assert version_of(other, "echo") == "2", "another version is refused as well"
        api.http.post(f"/v1/jobs/{job_id}/cancel")
        other.services.versions.learn()
        assert version_of(other, "echo@1") == "1"
    assert versions(api)["echo@1"]["digest"] == edited.digest
    api.services.versions.learn()
    assert submit(api, "echo@1").json()["error"]["code"] == "version_changed", "the server with the old file"


def test_the_doctor_tells_the_same_of_a_version_that_was_another_file(
    api: ApiServer, settings: Settings, configs: Path
) -> None:
    def told() -> dict[str, tuple[str, str, str | None]]:
        return {each.about: (each.state, each.message, each.remedy) for each in examine(settings, ["pipelines"])}

    job_id = submit(api, "echo@1").json()["id"]
    assert {state for state, _, _ in told().values()} == {"ok"}
    (configs / "echo.yaml").write_text(EDITED)
    with serve(settings) as other:
        other.services.versions.learn()
        refused = other.http.get("/readyz").json()["pipelines"]["echo@1"]["error"]
    assert refused["code"] == "version_changed"
    state, message, remedy = told()["echo@1"]
    assert (state, message) == ("error", refused["message"])
    assert str(remedy).startswith("raise `version`")
    assert told()["echo"][0] == "ok", "another version"
    api.http.post(f"/v1/jobs/{job_id}/cancel")
    assert told()["echo@1"][0] == "ok", "a server that starts now has the new file take its place"
    away = settings.model_copy(update={"database_url": f"sqlite:///{configs / 'none.sqlite'}"})
    assert [each.state for each in examine(away, ["pipelines"])] == ["ok", "ok"]
    assert versions(api)["echo@1"]["digest"] != load_pipelines(configs)["echo@1"].digest, "the doctor changed it"


def test_a_worker_of_the_other_file_keeps_it_too(api: ApiServer, settings: Settings, configs: Path) -> None:
    versions(api)
    echo = api.services.pipelines["echo@1"]
    worker = NewWorker("w", "w", echo.stage_id("first"), "host", 1, 4, echo.version)
    api.services.jobs.register_worker(worker, 60.0)
    (configs / "echo.yaml").write_text(EDITED)
    with serve(settings) as other:
        assert submit(other, "echo@1").status_code == 503
        api.services.jobs.retire_worker("w")
        other.services.versions.learn()
        assert submit(other, "echo@1").status_code == 202


def scaling(api: ApiServer, pipeline: str) -> tuple[str, dict[str, Any]]:
    """The version that a reference means to an autoscaler, and the numbers that follow from it."""
    answer = api.http.get("/v1/scaling", params={"pipeline": pipeline, "stage": "first"})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told.pop("pipeline"), told.pop("stage")) == ("echo", "first")
    return told.pop("version"), told


def test_each_version_is_scaled_by_its_own_work_and_workers(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in ("echo@1", "echo@1", "echo@1", "echo@2"):
        version_of(api, model)
    for version, slots, run_s in (("1", 2, 40.0), ("2", 4, 5.0)):
        echo = api.services.pipelines.named(f"echo@{version}")
        worker = NewWorker(f"w{version}", f"w{version}", echo.stage_id("first"), "host", 1, slots, version)
        api.services.jobs.register_worker(worker, 60.0)
        api.services.jobs.renew(worker.worker_id, 60.0, run_s=run_s)
    assert len(api.services.jobs.claim("w1", 2).claims) == 2
    old, new = scaling(api, "echo@1"), scaling(api, "echo@2")
    assert [told["waiting"] for _, told in (old, new)] == [1, 1]
    assert [told["running"] for _, told in (old, new)] == [2, 0]
    assert [told["run_s"] for _, told in (old, new)] == [40.0, 5.0]
    assert [told["workers"] for _, told in (old, new)] == [1, 1]
    assert (old[0], new[0]) == ("1", "2")
    assert scaling(api, "echo") == new, "NAME is the newest that takes jobs"
    for _ in range(3):
        version_of(api, "echo@1")
    assert (scaling(api, "echo@1")[1]["wanted"], scaling(api, "echo@2")[1]["wanted"]) == (3, 1)
    monkeypatch.setattr("omni_jobs.jobs.read.stage_crew._COUNTED", 2)
    assert [scaling(api, f"echo@{version}")[1]["waiting"] for version in "12"] == [4, 1]
    api.http.post("/v1/pipelines/echo@2/drain")
    assert scaling(api, "echo") == scaling(api, "echo@1")
    assert scaling(api, "echo@2")[1]["waiting"] == 1, "what a draining version has left"


def loads(api: ApiServer) -> list[tuple[str | None, str, bool, int, int, int, int]]:
    """What the status says of each stage: version, stage, whether it drains, pending, queued, running, workers."""
    names = ("version", "stage", "draining", "pending", "queued", "running", "workers")
    return [tuple(each[name] for name in names) for each in api.http.get("/v1/status").json()["stages"]]  # type: ignore[misc]


def test_versions_with_work_are_told_apart_until_one_is_left(api: ApiServer) -> None:
    assert loads(api) == [(None, "first", False, 0, 0, 0, 0), (None, "second", False, 0, 0, 0, 0)]
    job_ids = [submit(api, "echo@1").json()["id"] for _ in range(3)]
    api.services.counts.cache_clear()
    assert loads(api) == [(None, "first", False, 0, 3, 0, 0), (None, "second", False, 3, 0, 0, 0)]
    version_of(api, "echo@2")
    echo = api.services.pipelines["echo@1"]
    api.services.jobs.register_worker(NewWorker("w", "w", echo.stage_id("first"), "host", 1, 4, "1"), 60.0)
    assert len(api.services.jobs.claim("w", 1).claims) == 1
    api.http.post("/v1/pipelines/echo@1/drain")
    api.services.counts.cache_clear()
    assert loads(api) == [
        ("2", "first", False, 0, 1, 0, 0),
        ("2", "second", False, 1, 0, 0, 0),
        ("1", "first", True, 0, 2, 1, 1),
        ("1", "second", True, 3, 0, 0, 0),
    ]
    page = api.http.get("/stages").text
    assert page.index('id="stage-echo@2-first"') < page.index('id="stage-echo@1-first"')
    assert page.count("draining, 6 stage runs left") == 1
    page = api.http.get("/").text
    assert ('aria-label="echo@1"' in page, 'aria-label="echo@2"' in page, page.count(">draining<")) == (True, True, 1)
    assert "echo@2.first: 1 stage run queued, and no worker" in page
    version_two = NewWorker(
        "v", "v", api.services.pipelines.named("echo@2", field="model").stage_id("first"), "host", 1, 4, "2"
    )
    api.services.jobs.register_worker(version_two, 60.0, loading=True)
    api.services.jobs.retire_worker("v", engine_down=True)
    shown = [each["down"] for each in api.http.get("/v1/status").json()["stages"]]
    assert shown == [1, 0, 0, 0], "the engine of version 2 is no other's"
    for job_id in job_ids:
        api.http.post(f"/v1/jobs/{job_id}/cancel")
    api.services.jobs.retire_worker("w")
    api.services.counts.cache_clear()
    assert {each[0] for each in loads(api)} == {None}, "version 2 alone has work"


def test_a_stage_is_paused_of_one_version_or_of_all(api: ApiServer) -> None:
    def paused() -> dict[str, bool]:
        shown = api.http.get("/v1/pipelines").json()["pipelines"]
        return {each["version"]: each["stages"][0]["paused_at"] is not None for each in shown}

    def act(pipeline: str, what: str) -> Any:
        answer = api.http.post(f"/v1/pipelines/{pipeline}/stages/first/{what}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    told = act("echo@1", "pause")
    assert (told["pipeline"], told["version"], told["paused_at"] is not None) == ("echo", "1", True)
    assert act("echo@1", "pause") == told
    assert paused() == {"1": True, "2": False}
    job_id = submit(api, "echo@1").json()["id"]
    version_of(api, "echo@2")
    assert api.http.get(f"/v1/jobs/{job_id}").json()["waiting"]["reason"] == "paused"
    scaled = {each: api.http.get("/v1/scaling", params={"pipeline": f"echo@{each}", "stage": "first"}) for each in "12"}
    assert {each: answer.json()["paused"] for each, answer in scaled.items()} == {"1": True, "2": False}
    api.services.counts.cache_clear()
    shown = api.http.get("/v1/status").json()["stages"]
    assert [(each["version"], each["stage"]) for each in shown if each["paused"]] == [("1", "first")]
    page = api.http.get("/stages").text
    assert ("Resume first of echo@1" in page, "Pause first of echo@2" in page) == (True, True)
    assert api.http.post("/stages/echo%402/first/pause", headers={"Sec-Fetch-Site": "same-origin"}).status_code < 400
    assert paused() == {"1": True, "2": True}
    url = f"http://{api.host}:{api.port}"
    resumed = CliRunner().invoke(app, ["stages", "resume", "echo@2", "first", "--url", url])
    assert (resumed.exit_code, resumed.output) == (0, "echo@2 first: open\n")
    listed = CliRunner().invoke(app, ["stages", "list", "--json", "--url", url])
    places = {(each["pipeline"], each["stage"]): each["paused_at"] is not None for each in json.loads(listed.output)}
    assert places == {("echo@1", "first"): True, ("echo@2", "first"): False, ("echo", "second"): False}
    act("echo", "pause")
    assert act("echo@1", "resume")["paused_at"] is not None, "all are paused"
    assert act("echo", "resume") == {"pipeline": "echo", "version": None, "stage": "first", "paused_at": None}
    assert paused() == {"1": False, "2": False}
    assert api.http.post("/v1/pipelines/echo@3/stages/first/pause").status_code == 404
    assert api.http.post("/v1/pipelines/echo@1/stages/third/pause").status_code == 404


@pytest.mark.parametrize("name", ["echo", "echo@3", "nobody@1", "%00", "%20", "..", "echo@1%2F", "x" * 300])
@pytest.mark.parametrize("what", ["drain", "serve"])
def test_an_unknown_version_is_a_404_and_changes_nothing(api: ApiServer, name: str, what: str) -> None:
    versions(api)
    answer = api.http.post(f"/v1/pipelines/{name}/{what}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert {each["state"] for each in versions(api).values()} == {"serving"}
    assert api.services.jobs.acts() == []


# The client and the command.


def run(api: ApiServer, *arguments: str) -> Result:
    url = f"http://{api.host}:{api.port}"
    return CliRunner().invoke(app, ["pipelines", *arguments, "--url", url], env={"COLUMNS": "200"})


def test_the_client_knows_the_errors(api: ApiServer) -> None:
    with Client(f"http://{api.host}:{api.port}") as client:
        assert [each.version for each in client.pipeline_versions()] == ["1", "2"]
        assert client.set_draining("echo@1", True).state == "draining"
        with pytest.raises(VersionDraining):
            client.submit({"model": "echo@1", "messages": [{"role": "user", "content": "x"}]})
        assert client.set_draining("echo@1", False).state == "serving"
    assert not VersionChanged().retryable


async def test_the_asynchronous_client_has_them_too(api: ApiServer) -> None:
    async with AsyncClient(f"http://{api.host}:{api.port}") as client:
        assert len(await client.pipeline_versions()) == 2
        assert (await client.set_draining("echo@1", True)).state == "draining"


def test_the_commands_list_drain_and_serve(api: ApiServer) -> None:
    listed = run(api, "versions").output
    assert "echo@2*" in listed
    assert "echo@1 " in listed
    assert "draining" in run(api, "drain", "echo@2").output
    shown = {each["version"]: each for each in json.loads(run(api, "versions", "--json").output)}
    assert (shown["1"]["is_default"], shown["2"]["state"]) == (True, "draining")
    assert json.loads(run(api, "serve", "echo@2", "--json").output)["state"] == "serving"
    unknown = run(api, "drain", "echo@9")
    assert (unknown.exit_code, "known are: echo@1, echo@2" in unknown.output) == (Exit.NOT_FOUND, True)
    assert "bounds --wait" in run(api, "drain", "echo@1", "--timeout", "1").output
