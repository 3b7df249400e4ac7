"""Scaling over HTTP: how many workers a stage should have, and what this follows from."""

from typing import Any

import pytest
from sqlalchemy import text

from omni_jobs.jobs import NewWorker
from omni_jobs.metrics.stage_stats import Histogram, StageStats
from omni_jobs.settings import Settings
from tests.integration.api_server import ApiServer

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"pipelines": ("echo",)})


def register(api: ApiServer, name: str, *, slots: int = 4, kept: int = 0, loading: bool = False) -> None:
    echo = api.services.pipelines["echo"]
    worker = NewWorker(name, name, echo.stage_id("first"), "host", 1, slots, echo.version, slots_for_high=kept)
    api.services.jobs.register_worker(worker, 60.0, loading=loading)


def scaling(api: ApiServer, **query: Any) -> dict[str, Any]:
    answer = api.http.get("/v1/scaling", params={"pipeline": "echo", "stage": "first", **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert (found.pop("pipeline"), found.pop("version"), found.pop("stage")) == ("echo", "1", "first")
    return found


def test_the_answer_follows_what_waits_runs_and_loads(api: ApiServer) -> None:
    nothing = {"wanted": 0, "waiting": 0, "running": 0, "workers": 0, "busy": 0, "loading": 0, "drained": 0}
    assert scaling(api) == {**nothing, "run_s": None, "paused": False}
    for _ in range(10):
        assert api.http.post("/v1/jobs", json=ECHO).status_code == 202
    slots = api.services.pipelines["echo"].stage("first").slots
    assert scaling(api)["wanted"] == -(-10 // slots)
    register(api, "one", slots=5, kept=1)
    register(api, "idle")
    api.services.jobs.claim("one", 4)
    api.services.jobs.renew("one", 60.0, run_s=30.0)
    assert scaling(api)["run_s"] == 30.0
    assert scaling(api, wait_s="30")["wanted"] == 3, "a slot for each of ten"
    assert scaling(api, wait_s="3600")["wanted"] == 2, "one slot does the six that wait within an hour"
    register(api, "late", loading=True)
    found = scaling(api)
    shown = {"waiting": 6, "running": 4, "workers": 2, "busy": 2, "loading": 1, "wanted": 3}
    assert {name: found[name] for name in shown} == shown


def test_a_drained_worker_serves_nobody_and_is_not_wanted_away(api: ApiServer) -> None:
    for name in ("one", "two"):
        register(api, name)
    register(api, "late", loading=True)
    for _ in range(4):
        assert api.http.post("/v1/jobs", json=ECHO).status_code == 202
    api.services.jobs.claim("one", 4)
    assert scaling(api)["wanted"] == 3
    for name in ("one", "late"):
        api.services.jobs.drain(name)
    shown = {"waiting": 0, "running": 4, "workers": 1, "busy": 0, "loading": 0, "drained": 2, "wanted": 2}
    found = scaling(api)
    assert {name: found[name] for name in shown} == shown, "what a drained one holds needs no other"
    for _ in range(8):
        assert api.http.post("/v1/jobs", json=ECHO).status_code == 202
    assert scaling(api)["wanted"] == 4, "two for what waits, and those that are drained"
    api.http.post("/v1/pipelines/echo/stages/first/pause")
    assert scaling(api)["wanted"] == 3, "as many as there are"


def test_the_time_of_a_stage_run_is_known_of_drained_workers_and_of_those_that_are_gone(api: ApiServer) -> None:
    register(api, "one")
    api.services.jobs.renew("one", 60.0, run_s=30.0)
    api.services.jobs.drain("one")
    assert scaling(api)["run_s"] == 30.0
    assert api.services.jobs.sample() is not None
    stats = StageStats({"run": Histogram({"5.0": 2}, 8.0), "load": Histogram({"1.0": 4}, 2.0)}, {"completed": 2})
    api.services.jobs.renew("one", 60.0, stats=stats.to_json())
    with api.services.db.begin() as tx:
        tx.execute(text("UPDATE samplings SET at = at - 60"))
    assert api.services.jobs.sample() is not None
    api.services.jobs.retire_worker("one")
    assert scaling(api)["run_s"] == 4.5
    for _ in range(20):
        assert api.http.post("/v1/jobs", json=ECHO).status_code == 202
    assert scaling(api, wait_s="60")["wanted"] == 1


def test_a_backlog_that_is_too_long_to_be_counted_each_time(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_jobs.jobs.read.stage_crew._COUNTED", 3)
    for waiting in (1, 2, 3, 4):
        assert api.http.post("/v1/jobs", json=ECHO).status_code == 202
        assert scaling(api)["waiting"] == waiting


def test_a_paused_stage_keeps_its_workers(api: ApiServer) -> None:
    register(api, "one")
    register(api, "late", loading=True)
    api.http.post("/v1/pipelines/echo/stages/first/pause")
    assert (scaling(api)["wanted"], scaling(api)["paused"]) == (2, True)


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ({"stage": "first"}, 422, "pipeline"),
        ({"pipeline": "echo"}, 422, "stage"),
        ({"pipeline": "nope", "stage": "first"}, 404, "pipeline"),
        ({"pipeline": "echo@2", "stage": "first"}, 404, "pipeline"),
        ({"pipeline": "echo@", "stage": "first"}, 422, "pipeline"),
        ({"pipeline": "echo", "stage": "third"}, 404, "stage"),
        ({"pipeline": "echo", "stage": "first", "wait_s": "nan"}, 422, "wait_s"),
        ({"pipeline": "echo", "stage": "first", "wait_s": "0"}, 422, "wait_s"),
        ({"pipeline": "echo", "stage": "first", "wait": "5"}, 422, "wait"),
    ],
    ids=str,
)
def test_a_wrong_question_names_its_field(api: ApiServer, query: dict[str, str], status: int, field: str) -> None:
    answer = api.http.get("/v1/scaling", params=query)
    assert (answer.status_code, answer.json()["error"]["field"]) == (status, field)
