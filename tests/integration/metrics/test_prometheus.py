"""A real Prometheus takes the deployed rules, scrapes a whole stack, and answers what the deployed dashboard asks."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import yaml

from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests.integration.echo_stack import PIPELINE
from tests.integration.metrics.test_metrics import PROCESSES, WITHIN_S, free_ports
from tests.services import missing
from tests.unit.metrics.test_deployed_metrics import DEPLOY, PANELS, RULES

PROMETHEUS = DEPLOY / "prometheus"
VARIABLES = {"$pipeline": "echo", "$stage": "first|second", "$__rate_interval": "30s"}
EMPTY = {"First token, p50 and p95", "Tokens per second", "Sound and pictures made", "Retries by users"}
"""Panels that an echo pipeline and jobs that nobody retries leave empty."""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed (Debian: apt-get install prometheus)")
    return found


def test_each_alert_fires_when_it_should_and_is_silent_in_a_quiet_hour() -> None:
    command = [program("promtool"), "test", "rules", str(PROMETHEUS / "rules_test.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_is_one_that_prometheus_takes() -> None:
    command = [program("promtool"), "check", "config", str(PROMETHEUS / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """Prometheus' API; it has scraped each process of a stack that has done jobs, twice since."""
    binary = program("prometheus")
    directory = tmp_path_factory.mktemp("prometheus")
    configs = directory / "stage_configs"
    configs.mkdir()
    (configs / "echo.yaml").write_text(PIPELINE)
    base = free_ports(len(PROCESSES) + 1)
    port = base + len(PROCESSES)
    settings = Settings(data_dir=directory / "data", stage_configs=configs, metrics_port=base)
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(PROMETHEUS / "rules.yml")]
    (scrape,) = config["scrape_configs"]
    (targets,) = scrape["static_configs"]
    assert len(targets["targets"]) == len(PROCESSES)
    targets["targets"] = [f"127.0.0.1:{base + number}" for number in range(len(PROCESSES))]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [binary, f"--config.file={directory}/prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
    command += [f"--storage.tsdb.path={directory}/tsdb", "--log.level=warn"]
    with (
        EmbeddedStack(settings, pipelines=["echo"], temporary=True) as stack,
        (directory / "prometheus.log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=WITHIN_S) as http,
    ):
        try:
            _wait_for(http, f"sum(up) == {len(PROCESSES)}")
            _work(stack.url, http)
            ends = 'omni_jobs_stage_ended_total{stage="second", result="completed"}'
            _wait_for(http, f"rate({ends}[30s]) > 0 and on() (sum(omni_jobs_stage_workers) == 2)")
            yield http
        finally:
            process.terminate()
            process.wait()


def _work(url: str, prometheus: httpx2.Client) -> None:
    """Jobs, and others of a model that there is not, one after the other, because a rate is of two scrapes."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
    with httpx2.Client(base_url=url, trust_env=False, timeout=WITHIN_S) as http:
        for number in (1, 2):
            answer = http.post("/v1/jobs", json=body, headers={"Prefer": "wait=20"})
            assert answer.json()["status"] == "completed"
            assert http.post("/v1/jobs", json={**body, "model": "no"}).status_code == 404
            _wait_for(prometheus, f'omni_jobs_http_answers_total{{status="404"}} == {number}')
            _wait_for(prometheus, f'omni_jobs_stage_ended_total{{stage="second", result="completed"}} == {number}')


def _wait_for(http: httpx2.Client, expression: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        try:
            if _ask(http, expression):
                return
        except httpx2.ConnectError:
            pass  # it starts
        time.sleep(0.2)
    pytest.fail(f"Prometheus never had {expression}")


def _ask(http: httpx2.Client, expression: str) -> list[dict[str, Any]]:
    answer = http.get("/query", params={"query": expression})
    if answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE:  # it starts
        return []
    assert answer.json()["status"] == "success", answer.text
    return list(answer.json()["data"]["result"])


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_what_happened(panel: dict[str, Any], prometheus: httpx2.Client) -> None:
    results = []
    for target in panel["targets"]:
        expression = target["expr"]
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        results += _ask(prometheus, expression)
    assert bool(results) or panel["title"] in EMPTY


def test_prometheus_evaluates_each_rule(prometheus: httpx2.Client) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        (group,) = prometheus.get("/rules").json()["data"]["groups"]
        health = {rule["name"]: rule["health"] for rule in group["rules"]}
        if "unknown" not in health.values() or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert health == {rule["alert"]: "ok" for rule in RULES}
    assert [rule["name"] for rule in group["rules"] if rule["alerts"]] == []
