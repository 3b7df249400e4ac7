"""Pull the plug over HTTP: where the page is, who may pull, and the jobs of its stream. The supervisor is the test."""

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest

from omni_jobs.database.database import Database
from omni_jobs.jobs import NUMBER, JobFilter
from omni_jobs.settings import Settings
from omni_jobs.stack.child import API, RESCUER, VALKEY, Child, ChildState
from omni_jobs.stack.plugs import PlugBoard, Plugs, Pull
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve

OWN = {"Sec-Fetch-Site": "same-origin"}
WORKER = "worker echo.first"


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


@contextmanager
def served_by_a_stack(settings: Settings, pulls: list[Pull], host: str = "127.0.0.1") -> Iterator[ApiServer]:
    """A server of a stack whose supervisor grants what it can do, and notes it, but kills nothing."""
    directory = settings.data_dir
    children = [
        Child(name, ["true"], environment={}, directory=directory, log=Path(os.devnull))
        for name in (VALKEY, API, RESCUER, WORKER)
    ]
    for child in children:
        child.state = ChildState.READY

    def supervise(pull: Pull) -> None:
        if pull.child not in {child.name for child in children}:
            return pull.refuse(f"this stack has no such process: {pull.child!r}")
        pulls.append(pull)
        return pull.grant()

    with closing(PlugBoard()) as board:
        board.open(children, supervise)
        with serve(settings, plugs=Plugs(os.dup(board.fd)), host=host) as api:
            yield api


def kill(api: ApiServer, process: str, **headers: str) -> httpx2.Response:
    return api.http.post("/plug/kills", files={"process": (None, process)}, headers={**OWN, **headers})


def test_only_the_embedded_stack_has_the_page(api: ApiServer) -> None:
    for path in ("/plug", "/fragments/plug"):
        answer = api.http.get(path)
        assert (answer.status_code, "omni-jobs up" in answer.text) == (404, True)
    assert kill(api, WORKER).status_code == 404
    assert "/plug" not in api.http.get("/").text


def test_elsewhere_nobody_is_asked_to_sign_in_for_it(settings: Settings) -> None:
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        assert api.http.get("/plug").status_code == 404


def test_a_process_is_killed_by_its_name_and_no_other(settings: Settings) -> None:
    pulls: list[Pull] = []
    with served_by_a_stack(settings, pulls) as api:
        page = api.http.get("/plug").text
        assert 'href="/plug" aria-current="page"' in page
        for name in ("worker echo.first", "the broker", "the API"):
            assert f"Kill {name}" in page
        assert "rescuer" not in page
        assert kill(api, WORKER).headers["location"] == "/plug"
        api.services.jobs.note_kill("valkey", by="anyone")
        audit = api.http.get("/audit", params={"target": "the broker"}).text
        assert ("killed the process" in audit, "valkey" in audit) == (True, False)
        assert [(pull.child, pull.by) for pull in pulls] == [(WORKER, "anyone")]
        for wrong in ("", str(os.getpid()), "worker echo.third", "../valkey"):
            answer = kill(api, wrong)
            assert (answer.status_code, "no such process" in answer.text) == (409, True), wrong
        assert api.http.post("/plug/kills", files={"process": (None, WORKER)}).status_code == 403  # by no page
        assert kill(api, WORKER, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert len(pulls) == 1


def test_the_api_answers_before_it_is_killed(settings: Settings) -> None:
    pulls: list[Pull] = []
    with served_by_a_stack(settings, pulls) as api:
        assert kill(api, API).status_code == 303
        deadline = time.monotonic() + 30
        while not pulls and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [pull.child for pull in pulls] == [API]


def test_without_keys_only_this_machine_may_pull(settings: Settings) -> None:
    pulls: list[Pull] = []
    with served_by_a_stack(settings.model_copy(update={"auth": "off"}), pulls, host="0.0.0.0") as api:
        page = api.http.get("/plug")
        assert page.status_code == 200
        assert "Nobody can pull a plug here" in page.text
        assert "<form" not in page.text
        for answer in (kill(api, WORKER), api.http.post("/plug/streams", headers=OWN)):
            assert (answer.status_code, "OMNI_JOBS_AUTH" in answer.text) == (403, True)
        assert pulls == []


def test_with_keys_only_an_operator_may_look_and_pull(settings: Settings, sqlite_url: str) -> None:
    pulls: list[Pull] = []
    with closing(Database(sqlite_url)) as database:
        Tenants(database).create("acme", 1.0, {})
        keys = {scope: ApiKeys(database).create("acme", [scope]) for scope in ("admin", "read", "submit")}
    with served_by_a_stack(settings.model_copy(update={"auth": "keys"}), pulls) as api:
        assert api.http.get("/plug").headers["location"] == "/signin?to=/plug"
        for scope, key in keys.items():
            headers = {"Authorization": f"Bearer {key.key}"}
            may = scope == "admin"
            assert api.http.get("/plug", headers=headers).status_code == (200 if may else 403)
            assert kill(api, WORKER, **headers).status_code == (303 if may else 403)
            if scope != "submit":
                assert ('href="/plug"' in api.http.get("/", headers=headers).text) == may
    assert [pull.by for pull in pulls] == [keys["admin"].id]


def test_the_jobs_of_a_stream_are_numbered_and_each_is_there_once(settings: Settings) -> None:
    with served_by_a_stack(settings, []) as api:
        stream = api.http.post("/plug/streams", headers=OWN).json()["stream"]
        path = f"/plug/streams/{stream}/jobs"
        answers = [api.http.post(f"{path}/{number}", headers=OWN) for number in (1, 1, 2)]
        assert [answer.status_code for answer in answers] == [202] * 3
        first, again, second = (answer.json()["id"] for answer in answers)
        assert first == again != second
        wanted = JobFilter(metadata=(("stream", stream),))
        found = api.services.jobs.list(wanted).jobs
        assert [(job.id, job.metadata[NUMBER]) for job in found] == [(second, "2"), (first, "1")]
        assert 'id="accepted">2<' in api.http.get("/plug").text
        for number in ("0", "401", "x"):
            assert api.http.post(f"{path}/{number}", headers=OWN).status_code == 422
        over = f"{int(time.time()) - 1000:010d}-{'0' * 8}"
        for other, status in ((over, 409), (f"{int(time.time()) + 1000:010d}-{'0' * 8}", 409), ("x", 422)):
            assert api.http.post(f"/plug/streams/{other}/jobs/1", headers=OWN).status_code == status
        assert len(api.services.jobs.list(wanted).jobs) == 2


def test_a_supervisor_that_does_not_answer_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_jobs.stack.plugs._ANSWER_S", 0.05)
    with closing(PlugBoard()) as board, serve(settings, plugs=Plugs(os.dup(board.fd))) as api:
        assert "supervisor gives no answer" in api.http.get("/plug").text
        assert kill(api, WORKER).status_code == 503
