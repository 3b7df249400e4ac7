"""The logs of a whole run: a line for each transition, once, and no secret that was put into it by any way in."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from omni_jobs.servers import Server
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack

WORD = "Xyzzy"  # each secret has it
PROMPT = f"The {WORD} formula of my grandmother's liniment takes seven drops of camphor."
KEY = f"sk-{WORD}-0123456789abcdef"
DATA_URL = f"data:image/png;base64,{WORD}{'QUJD' * 30}"
PIPELINE = """
name: far
version: "1"
stages:
  llm:
    kind: remote
    processor: remote_chat
    produces: text
    slots: 4
    engine: {server: local, endpoint: chat, model: smol, tries: 1, wait_s: 0}
outputs:
  text: {stage: llm}
"""
ROOT = Path(__file__).parents[3]


class Refusing(BaseHTTPRequestHandler):
    """A server that refuses every request, and quotes all it knows."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        said = f"Incorrect API key provided: {KEY}; the prompt {PROMPT[9:]!r} with {DATA_URL} came from redis://:{WORD}1234@b"
        body = json.dumps({"error": {"message": said, "type": "invalid_request_error"}}).encode()
        self.send_response(400)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def job_of(model: str, **more: Any) -> dict[str, Any]:
    metadata = {"note": f"{WORD} in metadata"}
    return {"model": model, "messages": [{"role": "user", "content": PROMPT}], "metadata": metadata, **more}


def ended(http: httpx2.Client, job_id: str) -> dict[str, Any]:
    while True:
        job: dict[str, Any] = http.get(f"/v1/jobs/{job_id}", params={"wait": "20"}).json()
        if job["status"] in ("completed", "failed", "cancelled"):
            return job


@pytest.mark.timeout(240)
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_whole_run_logs_each_transition_once_and_no_secret(form: str, tmp_path: Path, refusing: str) -> None:
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "far.yaml").write_text(PIPELINE, encoding="utf-8")
    (configs / "echo.yaml").write_bytes((ROOT / "stage_configs" / "echo.yaml").read_bytes())
    servers = {"local": Server(url=refusing, key=SecretStr(KEY))}
    settings = Settings(
        data_dir=tmp_path / "data", stage_configs=configs, servers=servers, log=form, lease_s=2, heartbeat_s=0.2
    )  # type: ignore[arg-type]
    headers = {"X-Request-Id": "the-request", "Authorization": f"Bearer {KEY}", "Cookie": f"a={WORD}"}
    with EmbeddedStack(settings, pipelines=["echo", "far"]) as stack:
        logs_in = stack.log_dir
        with httpx2.Client(base_url=stack.url, headers=headers, trust_env=False, timeout=60) as http:
            made = http.post("/v1/jobs", json=job_of("echo"), headers={"Idempotency-Key": f"{WORD}-key"}).json()
            done = ended(http, made["id"])
            assert done["status"] == "completed"
            failed = ended(http, http.post("/v1/jobs", json=job_of("far")).json()["id"])
            assert failed["status"] == "failed"
            assert WORD in failed["error"]["message"]  # whoever asks for the job is told
            slow = {"stages": {"first": {"delay_s": 60}}}
            lost = http.post("/v1/jobs", json=job_of("echo", **slow)).json()["id"]
            cancelled = http.post("/v1/jobs", json=job_of("echo", **slow)).json()["id"]
            while not all(
                http.get(f"/v1/jobs/{each}").json()["stages"][0]["status"] == "running" for each in (lost, cancelled)
            ):
                pass
            http.post(f"/v1/jobs/{cancelled}/cancel")
            assert ended(http, cancelled)["status"] == "cancelled"
            worker = next(child for child in stack.children() if child.name == "worker echo.first")
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            while not http.get(f"/v1/jobs/{lost}").json()["stages"][0]["errors"]:
                pass
            http.post(f"/v1/jobs/{lost}/cancel")
            for path in (f"/v1/jobs/{WORD}?name={WORD}.png&metadata.note={WORD}", f"/v1/jobs?limit=1&filename={WORD}"):
                http.get(path.replace(f"/{WORD}?", "?"))
            http.post("/v1/jobs", content=f'{{"model": "{WORD}", "messages": "{DATA_URL}"'.encode())
    logs = {path.stem: path.read_text(encoding="utf-8") for path in logs_in.iterdir()}
    assert {name for name, log in logs.items() if WORD in log} == set()
    assert_transitions(form, logs, done, failed["id"], lost)


def assert_transitions(form: str, logs: dict[str, str], done: dict[str, Any], failed: str, lost: str) -> None:
    """Each transition of these jobs has one line, which names what it is of."""
    lines = [line for name, log in logs.items() if name != "valkey" for line in log.splitlines()]
    if form == "text":
        for message in ("job queued", "job in_progress", "job completed"):
            assert len([line for line in lines if f"{message}  job={done['id']}" in line]) == 1, message
        assert len([line for line in lines if "stage run succeeded" in line and done["id"] in line]) == 2
        [queued] = [line for line in lines if f"job queued  job={done['id']}" in line]
        assert queued.endswith(" request=the-request")
        return
    assert [line for line in lines if not line.startswith("{")] == []
    parsed = [json.loads(line) for line in lines]
    of_done = [each for each in parsed if each.get("job") == done["id"]]
    said = sorted((each["message"], each.get("stage", "")) for each in of_done)
    of_stages = [(f"stage run {what}", stage) for stage in ("first", "second") for what in ("running", "succeeded")]
    of_job = [("job queued", ""), ("job in_progress", ""), ("job completed", ""), ("stage run queued", "second")]
    assert said == sorted([*of_stages, *of_job])
    assert [each["request"] for each in of_done if each["message"] == "job queued"] == ["the-request"]
    [running] = [each for each in of_done if (each["message"], each.get("stage")) == ("stage run running", "first")]
    assert (running["attempt"], running["worker"]) == (1, done["stages"][0]["worker"])
    [error] = [each for each in parsed if each["message"] == "stage run failed" and each["job"] == failed]
    assert error["level"] == "WARNING"
    assert "[text]" in error["because"]
    [freed] = [each for each in parsed if each.get("error") == "worker_lost" and each["job"] == lost]
    assert freed["message"] == "stage run queued"  # by the rescuer, or by the worker that took the slot
    assert {"api", "rescuer", "worker"} <= {each["process"] for each in parsed}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "command", [["omni_jobs.cli", "api", "--port", "0"], ["omni_jobs.cli", "rescuer"], ["omni_jobs.cli", "worker"]]
)
def test_no_process_logs_the_password_of_a_service_that_is_away(command: list[str], tmp_path: Path) -> None:
    password = f"{WORD}-pass"
    environment = {
        **os.environ,
        "OMNI_JOBS_LOG": "json",
        "OMNI_JOBS_DATA_DIR": str(tmp_path),
        "OMNI_JOBS_DATABASE_URL": f"postgresql://omni:{password}@127.0.0.1:1/omni?application_name={password}",
        "OMNI_JOBS_BROKER_URL": f"redis://:{password}@127.0.0.1:1/0",
        "OMNI_JOBS_RESCUE_EVERY_S": "0.1",
    }
    more = ["-p", "echo", "-s", "first"] if command[-1] == "worker" else []
    with subprocess.Popen(
        [sys.executable, "-m", *command, *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if (found := re.search(r"http://(127\.0\.0\.1:[1-9]\d*)", line)) is not None:
                assert httpx2.get(f"http://{found[1]}/v1/jobs", trust_env=False, timeout=60).status_code == 503
            if "database" in line:
                break
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        seen += process.stdout.readlines()
    log = "".join(seen)
    assert "database" in log, log
    assert password not in log
    assert [line for line in seen if not line.startswith("{")] == []
    assert [json.loads(line) for line in seen]
