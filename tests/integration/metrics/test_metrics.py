"""``/metrics`` of each process of a whole stack: it tells what happened, and of nobody to whom."""

import math
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx2
import pytest

from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests.integration.api_server import BEHIND_A_PROXY, ApiServer, serve
from tests.integration.echo_stack import PIPELINE

PLANTED = "planted"
STAGES = ("first", "second")
PROCESSES = ("api", "rescuer", *STAGES)
WITHIN_S = 30.0
ROWS = {"row of first": {"completed": 1, "payload_too_large": 1}, "row of second": {"completed": 1}}


def free_ports(number: int) -> int:
    """The first of so many ports that nobody has."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as found, ExitStack() as taken:
            base = found.getsockname()[1]
            try:
                for port in range(base + 1, base + number):
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return int(base)


def values(text: str) -> dict[str, float]:
    """The value of each series, by its name and labels."""
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in lines}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What each process shows once a job has completed, one has failed and some were refused."""
    port = free_ports(len(PROCESSES))
    directory = tmp_path_factory.mktemp("stack")
    configs = directory / "stage_configs"
    configs.mkdir()
    (configs / "echo.yaml").write_text(PIPELINE)
    settings = Settings(data_dir=directory / "data", stage_configs=configs, metrics_port=port, **BEHIND_A_PROXY)
    ask = {"model": "echo", "messages": [{"role": "user", "content": PLANTED}], "metadata": {PLANTED: PLANTED}}
    with (
        EmbeddedStack(settings, pipelines=["echo"], temporary=True) as stack,
        httpx2.Client(base_url=stack.url, headers={"X-Tenant": PLANTED}, trust_env=False, timeout=WITHIN_S) as http,
    ):
        fails = {**ask, "stages": {"first": {"payload_bytes": 2_000_000}}}  # more than its pipeline allows
        ids = []
        for body in (ask, ask, fails):
            key = {"Idempotency-Key": f"{PLANTED}-{body is fails}"}
            answer = http.post("/v1/jobs", json=body, headers=key)
            assert answer.status_code in (200, 202), answer.text
            ids.append(answer.json()["id"])
        assert http.post("/v1/jobs", json={**ask, "model": f"{PLANTED}-model"}).status_code == 404
        assert http.get(f"/v1/jobs/{PLANTED}").status_code == 404
        assert http.get("/metrics").status_code == 403, "a tenant sees nothing of the others"
        ended = [http.get(f"/v1/jobs/{each}", params={"wait": 20}).json()["status"] for each in ids]
        assert ended == ["completed", "completed", "failed"]
        texts: dict[str, str] = {}
        with httpx2.Client(trust_env=False) as scraper:
            deadline = time.monotonic() + WITHIN_S
            while time.monotonic() < deadline:  # the end of a stage run is heard some moments after its job's
                for number, name in enumerate(PROCESSES):
                    answer = scraper.get(f"http://127.0.0.1:{port + number}/metrics")
                    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
                    texts[name] = answer.text
                shown = {stage: values(texts[stage]) for stage in STAGES}
                ends = [shown[stage].get(f"omni_jobs_stage_ended_total{_of(stage, 'completed')}") for stage in STAGES]
                ages = (series[f"omni_jobs_stage_lease_age_seconds{_at(stage)}"] for stage, series in shown.items())
                if ends == [1, 1] and not any(map(math.isnan, ages)):  # each has renewed its lease
                    break
        recorded = recorded_ends(Database(stack.settings.resolved_database_url))
        yield {**texts, "ids": " ".join(ids), **recorded}


def recorded_ends(database: Database) -> dict[str, str]:
    """What the rows of the workers have of their ends, by "row of" the stage, once they have what is expected."""
    deadline = time.monotonic() + WITHIN_S
    with closing(database):
        while True:  # until the next renewal
            ends = {f"row of {worker.stage}": worker.ended for worker in Jobs(database).workers()}
            if ends == ROWS or time.monotonic() > deadline:
                return {name: str(ended) for name, ended in ends.items()}
            time.sleep(0.1)


def _at(stage: str) -> str:
    return f'{{pipeline="echo",stage="{stage}",version="1"}}'


def _of(stage: str, result: str) -> str:
    return f'{{pipeline="echo",result="{result}",stage="{stage}",version="1"}}'


def test_no_label_of_any_process_tells_of_a_tenant_a_job_or_a_key(texts: dict[str, str]) -> None:
    for name in PROCESSES:
        labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', texts[name])
        assert labels
        told = {value for _, value in labels}
        assert [value for value in told if PLANTED in value or value in texts["ids"].split()] == []
        assert [value for value in told if re.search(r"job-|worker-|req-|[0-9a-f]{12}", value)] == []


def test_each_process_says_which_it_is(texts: dict[str, str]) -> None:
    kinds = [re.findall(r'omni_jobs_process_info\{kind="(\w+)"', texts[name]) for name in PROCESSES]
    assert kinds == [["api"], ["rescuer"], ["worker"], ["worker"]]


def test_the_api_counts_what_came_and_what_it_answered(texts: dict[str, str]) -> None:
    api = values(texts["api"])
    assert api['omni_jobs_submits_total{pipeline="echo",result="created"}'] == 2
    assert api['omni_jobs_submits_total{pipeline="echo",result="known"}'] == 1
    assert api['omni_jobs_submits_total{pipeline="",result="not_found"}'] == 1
    assert api["omni_jobs_submit_seconds_count"] >= 3
    assert api['omni_jobs_http_answers_total{code="not_found",status="404"}'] == 2
    assert api['omni_jobs_http_answers_total{code="missing_scope",status="403"}'] == 1
    assert api['omni_jobs_http_answers_total{code="",status="202"}'] == 2
    assert api['omni_jobs_doorbells_total{outcome="rung"}'] >= 1
    assert api["omni_jobs_watching_requests"] == 0


def test_a_worker_measures_each_step_and_counts_each_end(texts: dict[str, str]) -> None:
    first, second = values(texts["first"]), values(texts["second"])
    for step, number in {"queue": 2, "load": 2, "run": 2, "store": 1}.items():
        assert first[f'omni_jobs_stage_{step}_seconds_count{{pipeline="echo",stage="first",version="1"}}'] == number
        assert 0 <= first[f'omni_jobs_stage_{step}_seconds_sum{{pipeline="echo",stage="first",version="1"}}'] < WITHIN_S
    assert first[f"omni_jobs_stage_ended_total{_of('first', 'completed')}"] == 1
    assert first[f"omni_jobs_stage_ended_total{_of('first', 'payload_too_large')}"] == 1
    assert second[f"omni_jobs_stage_ended_total{_of('second', 'completed')}"] == 1
    stored = first['omni_jobs_stage_handoff_bytes_total{direction="stored",pipeline="echo",stage="first",version="1"}']
    assert stored > 0
    assert (
        second['omni_jobs_stage_handoff_bytes_total{direction="loaded",pipeline="echo",stage="second",version="1"}']
        >= stored
    )
    assert first['omni_jobs_stage_in_flight{pipeline="echo",stage="first",version="1"}'] == 0
    assert 0 <= first['omni_jobs_stage_lease_age_seconds{pipeline="echo",stage="first",version="1"}'] < WITHIN_S


def test_the_rows_of_workers_have_the_same_counts(texts: dict[str, str]) -> None:
    assert {name: texts[name] for name in ROWS} == {name: str(ended) for name, ended in ROWS.items()}


def test_a_rescuer_tells_of_its_rounds(texts: dict[str, str]) -> None:
    rescuer = values(texts["rescuer"])
    assert time.time() - rescuer["omni_jobs_rescuer_round_timestamp_seconds"] < 10 * WITHIN_S
    assert rescuer["omni_jobs_freed_stage_runs_total"] == 0


def test_the_api_shows_its_own_at_its_port_to_an_administrator(sqlite_settings: Settings) -> None:
    with serve(sqlite_settings) as server:
        answer = server.http.get("/metrics")
        assert answer.status_code == 200
        assert 'omni_jobs_process_info{kind="api"' in answer.text


@pytest.fixture
def api(sqlite_settings: Settings) -> Iterator[ApiServer]:
    with serve(sqlite_settings) as server:
        yield server


HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (HEAD + b"X: " + b"x" * 100_000, '{code="head_too_large",status="431"}'),
        (b"no HTTP at all\r\n\r\n", '{code="bad_request",status="400"}'),
        # The route waits for the body meanwhile, and what it answers is dropped.
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * 100_000, '{code="head_too_large",status="431"}'),
    ],
)
def test_what_a_connection_refuses_by_itself_counts_once(api: ApiServer, sent: bytes, answered: str) -> None:
    with socket.create_connection((api.host, api.port), timeout=WITHIN_S) as client:
        client.sendall(sent)
        while client.recv(4096):  # until the server closes
            pass
    shown = values(api.http.get("/metrics").text).items()
    errors = {name: number for name, number in shown if "http_answers" in name and 'code=""' not in name}
    assert errors == {f"omni_jobs_http_answers_total{answered}": 1}


def test_an_error_that_a_page_says_is_counted_with_its_code(api: ApiServer) -> None:
    assert api.http.get("/jobs?status=odd").status_code == 422
    counted = values(api.http.get("/metrics").text)
    assert counted['omni_jobs_http_answers_total{code="invalid_request",status="422"}'] == 1


def test_a_database_that_is_away_is_counted(api: ApiServer, tmp_path: Path) -> None:
    with api.services.db.begin() as tx:
        tx.exec_driver_sql("ALTER TABLE jobs RENAME TO hidden")
    assert api.http.get("/v1/jobs").status_code == 503
    faults = values(api.http.get("/metrics").text)
    assert faults['omni_jobs_database_faults_total{outcome="given_up"}'] >= 1
