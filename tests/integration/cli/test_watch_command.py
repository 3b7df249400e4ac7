"""``omni-jobs watch`` against a real API server: what it tells of jobs, and how it ends."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner, Result

from omni_jobs.cli import Exit, app
from omni_jobs.settings import Settings
from omni_jobs.views import JobView
from tests.integration.api_server import ApiServer
from tests.integration.hand_worker import HandWorker
from tests.integration.job_steps import pass_time
from tests.integration.served_jobs import completed, failed
from tests.services.fault_proxy import Fault, FaultProxy

PATIENCE_S = 60


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


def url_of(api: ApiServer) -> list[str]:
    return ["--url", f"http://{api.host}:{api.port}"]


def submitted(api: ApiServer, **headers: str) -> str:
    body = {"model": "echo", "messages": [{"role": "user", "content": "Hello"}]}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    job_id: str = api.http.post("/v1/jobs", json=body, headers=named).json()["id"]
    return job_id


def watch(api: ApiServer, *words: str) -> Result:
    return CliRunner().invoke(app, ["watch", *words, *url_of(api)])


@contextmanager
def watching(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that watches jobs, for as long as the context."""
    command = [sys.executable, "-m", "omni_jobs.cli", "watch", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_jobs_are_followed_to_their_ends(api: ApiServer) -> None:
    """A line comes when the change does, also in a pipe."""
    first, second = submitted(api), submitted(api)
    with watching(first, second, "--json", *url_of(api)) as command:
        assert command.stdout is not None
        begun = [JobView.model_validate_json(command.stdout.readline()) for _ in range(2)]
        assert {job.id: job.status.value for job in begun} == {first: "queued", second: "queued"}
        completed(api, first)
        assert api.http.post(f"/v1/jobs/{second}/cancel").json()["status"] == "cancelled"
        output, errors = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == Exit.CANCELLED
    assert errors == f"omni-jobs: job {second} is cancelled\n"
    views = [JobView.model_validate_json(line) for line in output.splitlines()]
    last = {job.id: job for job in views}
    assert (last[first].status.value, last[second].status.value) == ("completed", "cancelled")
    assert last[first].result == {"text": "second"}


def test_its_text_is_told_as_it_grows_over_connections_that_break(api: ApiServer) -> None:
    job_id = submitted(api)
    with FaultProxy(f"http://{api.host}:{api.port}", http=True) as proxy:
        proxy.set(Fault(cut_answer_after=4_000, times=4))
        with watching(job_id, "--json", "--url", proxy.url) as command:
            assert command.stdout is not None
            worker = HandWorker(api, job_id)
            worker.complete(worker.claim("first"))
            claim, text = worker.claim("second"), ""
            for number in range(40):
                word = f"Wort {number}, 漢字 😀. "
                worker.write(claim, len(text), word, done=number)
                text, told = text + word, ""
                while told != text:
                    assert text.startswith(told)
                    progress = JobView.model_validate_json(command.stdout.readline()).stages[1].progress
                    told = (progress and progress.text) or ""
            worker.complete(claim, result={"text": text})
            output, errors = command.communicate(timeout=PATIENCE_S)
        assert proxy.struck == 4
    assert (command.returncode, errors) == (0, "")
    last = JobView.model_validate_json(output.splitlines()[-1])
    assert (last.status.value, last.result) == ("completed", {"text": text})


def test_the_exit_code_says_how_a_job_ended(api: ApiServer) -> None:
    done, broken, late = submitted(api), submitted(api), submitted(api, Cancel_After="15m")
    completed(api, done)
    failed(api, broken)
    pass_time(api.services.db, 1000)
    assert api.services.jobs.rescue().expired == 1
    waits = submitted(api)
    well = watch(api, done, done)
    assert (well.exit_code, well.stderr) == (0, "")
    assert well.stdout == f"{done} first succeeded\n{done} second succeeded\n"
    result = watch(api, broken)
    assert (result.exit_code, result.stderr.count("\n")) == (Exit.FAILED, 1)
    assert "is failed: stage first: the prompt broke it" in result.stderr
    assert watch(api, late).exit_code == Exit.EXPIRED
    assert watch(api, "job-0").exit_code == Exit.NOT_FOUND
    slow = watch(api, waits, "--timeout", "0.2")
    assert (slow.exit_code, slow.stderr) == (Exit.TIMEOUT, f"omni-jobs: job {waits} is queued after 0.2 s\n")
    several = watch(api, done, late, "job-0", broken)
    assert several.exit_code == Exit.EXPIRED
    assert [late in several.stderr, "job-0" in several.stderr, broken in several.stderr] == [True] * 3


def test_a_job_that_has_ended_is_one_line_of_json(api: ApiServer) -> None:
    job_id = submitted(api)
    completed(api, job_id)
    (line,) = watch(api, job_id, "--json").stdout.splitlines()
    assert json.loads(line) == api.http.get(f"/v1/jobs/{job_id}").json()


def test_a_server_that_is_away_ends_it(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_jobs.client.repeats.PAUSES_S", (0.01,))
    result = CliRunner().invoke(app, ["watch", "job-1", "job-2", "--url", "http://127.0.0.1:9"])
    assert result.exit_code == Exit.UNREACHABLE
    assert result.stderr.startswith("omni-jobs: no answer from http://127.0.0.1:9/v1/jobs/job-")
    assert result.stderr.count("\n") == 1
