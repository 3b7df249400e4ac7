"""Two builds of omni-jobs on one database and one broker: the newer one migrates, and the older one goes on."""

import json
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from omni_jobs.broker.worker_command import POOL_ENVIRONMENT
from omni_jobs.states import JobState
from omni_jobs.views import WorkerView
from tests.integration.builds import CONTRACTS, EXPANDS, Build, build_tree
from tests.integration.echo_stack import START_S, EchoStack

pytestmark = [pytest.mark.long, pytest.mark.timeout(280)]

PAUSE_S = 0.1  # between two jobs
BEFORE, AFTER = 60, 60  # jobs that are taken before the migration, and once only new processes are left


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> list[Build]:
    """That of the tree, the next release, which expands the schema, and the one after it, which contracts it."""
    directory = tmp_path_factory.mktemp("builds")
    tree = build_tree(directory)
    expanding = tree.later(directory / "expanding", "9001", EXPANDS)
    return [tree, expanding, expanding.later(directory / "contracting", "9002", CONTRACTS)]


class Processes:
    """Processes of builds on the services of a stack. Leaves none behind."""

    def __init__(self, stack: EchoStack) -> None:
        self.stack = stack
        self._started: list[subprocess.Popen[bytes]] = []

    def log(self) -> Path:
        return self.stack.directory / f"process-{len(self._started)}.log"

    def api(self, build: Build) -> tuple[str, subprocess.Popen[bytes]]:
        """Start an API, and return its URL as soon as it listens, which is before it is ready."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            process = build.start(self.stack.variables, "api", log=self.log(), fd=listener.fileno())
            self._started.append(process)
            return f"http://127.0.0.1:{listener.getsockname()[1]}", process

    def rescuer(self, build: Build) -> subprocess.Popen[bytes]:
        self._started.append(build.start(self.stack.variables, "rescuer", log=self.log()))
        return self._started[-1]

    def worker(self, build: Build, stage: str, slot: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a worker, and return it with its log."""
        command, _ = self.stack.command("-Q", f"echo.{stage}", "-n", slot, "--without-gossip", "--without-mingle")
        log = self.log()
        environment = build.environment({**self.stack.variables, **POOL_ENVIRONMENT})
        with open(log, "wb") as out:
            process = subprocess.Popen(command, env=environment, cwd=build.directory, stdout=out, stderr=out)
        self._started.append(process)
        return process, log

    def serving(self, started: tuple[subprocess.Popen[bytes], Path]) -> subprocess.Popen[bytes]:
        """Wait until a worker serves."""
        process, log = started

        def look() -> WorkerView | None:
            assert process.poll() is None, log.read_text()[-4000:]
            return next((view for view in self.stack.jobs.workers() if view.pid == process.pid), None)

        self.stack.until(look, START_S)
        return process

    def ready(self, url: str) -> None:
        """Wait until an API is ready."""
        self.stack.until(lambda: readiness(url)[0] == 200 or None, START_S)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()


def readiness(url: str) -> tuple[int, dict[str, Any]]:
    answer = httpx2.get(f"{url}/readyz", timeout=START_S, trust_env=False)
    return answer.status_code, answer.json()


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    process.send_signal(number)
    process.wait(60)


class Clients(threading.Thread):
    """Submits jobs one after another to APIs in turn, and looks at each: every answer that is no success is kept.

    ``add`` and ``remove`` are what a load balancer does; ``remove`` returns once the API has answered all it was asked.
    """

    def __init__(self) -> None:
        super().__init__(name="clients", daemon=True)
        self.accepted: dict[str, str] = {}  # the jobs, with their texts
        self.errors: list[str] = []
        self._urls: list[str] = []
        # A connection for each request, which a server that stops may otherwise close as the next one comes.
        self._http = httpx2.Client(timeout=60, trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0))
        self._asking = threading.Lock()
        self._stopped = threading.Event()

    def add(self, url: str) -> None:
        with self._asking:
            self._urls.append(url)

    def remove(self, url: str) -> None:
        with self._asking:
            self._urls.remove(url)

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        self._http.close()

    def run(self) -> None:
        number = 0
        while not self._stopped.wait(PAUSE_S):
            number += 1
            self._submit(f"text {number}", number)

    def _submit(self, words: str, number: int) -> None:
        message = {"role": "user", "content": words}
        body = {"model": "echo", "messages": [message], "stages": {"first": {"delay_s": 0.3}}}
        with self._asking:
            url = self._urls[number % len(self._urls)]
            try:
                answer = self._http.post(f"{url}/v1/jobs", json=body)
                if not answer.is_success:
                    self.errors.append(answer.text)
                    return
                job_id = answer.json()["id"]
                self.accepted[job_id] = words
                seen = self._http.get(f"{url}/v1/jobs/{job_id}")
                if not seen.is_success:
                    self.errors.append(seen.text)
            except httpx2.HTTPError as error:
                self.errors.append(f"{url}: {error!r}")


@contextmanager
def open_stack(directory: Path, url: str, broker_url: str, build: Build) -> Iterator[tuple[EchoStack, Processes]]:
    """A stack of which the build has migrated the database."""
    stack = EchoStack(directory, url, broker_url)
    processes = Processes(stack)
    try:
        code, _, err = build.run(stack.variables, "migrate")
        assert code == 0, err
        yield stack, processes
    finally:
        processes.close()
        stack.close()


def migrated(build: Build, variables: Mapping[str, str], said: str) -> None:
    code, out, err = build.run(variables, "migrate")
    assert (code, said in out) == (0, True), out + err


def test_a_rolling_upgrade_loses_and_doubles_nothing_and_no_client_sees_an_error(
    builds: list[Build], empty_url: str, valkey_url: str, tmp_path: Path
) -> None:
    old, new, _ = builds
    with open_stack(tmp_path, empty_url, valkey_url, old) as (stack, processes):
        variables, clients = stack.variables, Clients()
        old_url, old_api = processes.api(old)
        rescuer = processes.rescuer(old)
        launched = [processes.worker(old, stage, f"old-{stage}@test") for stage in ("first", "second")]
        first, second = [processes.serving(each) for each in launched]
        processes.ready(old_url)
        clients.add(old_url)
        clients.start()
        try:
            stack.until(lambda: len(clients.accepted) >= BEFORE or None, START_S)
            migrated(new, variables, "up to date")
            assert stack.database.revision() == "9001"
            migrated(old, variables, "schema 9001 of a newer version, on which this one works")

            # Old processes are started anew, as after a crash.
            for process in (second, rescuer):
                end(process, signal.SIGKILL)
            rescuer = processes.rescuer(old)
            second = processes.serving(processes.worker(old, "second", "old-second@test"))
            again_url, again_api = processes.api(old)
            processes.ready(again_url)
            clients.add(again_url)
            clients.remove(old_url)
            end(old_api)

            # New ones come up, the old ones drain and stop.
            new_url, _ = processes.api(new)
            processes.ready(new_url)
            clients.add(new_url)
            processes.rescuer(new)
            for each in [processes.worker(new, stage, f"new-{stage}@test") for stage in ("first", "second")]:
                processes.serving(each)
            for slot, process in (("old-first@test", first), ("old-second@test", second)):
                code, _, err = new.run({**variables, "OMNI_JOBS_URL": new_url}, "workers", "drain", slot, "--wait")
                assert code == 0, err
                end(process)
            clients.remove(again_url)
            for process in (again_api, rescuer):
                end(process)
            so_far = len(clients.accepted)
            stack.until(lambda: len(clients.accepted) >= so_far + AFTER or None, START_S)
        finally:
            clients.stop()
        assert clients.errors == []
        all_have_ended_once(stack, clients.accepted)


def all_have_ended_once(stack: EchoStack, accepted: Mapping[str, str]) -> None:
    """Every accepted job, none else, with its own result."""
    unfinished = text("SELECT count(*) FROM jobs WHERE finished_at IS NULL")
    stack.until(lambda: not stack.database.read(lambda tx: tx.execute(unfinished).scalar_one()) or None, 60)
    jobs, ends, results = [
        stack.database.read(lambda tx, query=query: tx.execute(text(query)).all())  # type: ignore[misc]
        for query in (
            "SELECT id, state FROM jobs",
            "SELECT job_id, type FROM events WHERE type IN ('job.completed', 'job.failed', 'job.cancelled')",
            "SELECT job_id, result FROM stage_runs WHERE stage = 'second'",
        )
    ]
    assert {row.id: row.state for row in jobs} == dict.fromkeys(accepted, JobState.COMPLETED), "none is lost"
    assert Counter(row.job_id for row in ends) == dict.fromkeys(accepted, 1), "none ends twice"
    assert {row.job_id: json.loads(row.result)["text"] for row in results} == dict(accepted)


def test_processes_of_a_build_that_is_too_old_say_so_until_the_schema_is_back(
    builds: list[Build], empty_url: str, valkey_url: str, tmp_path: Path
) -> None:
    old, _, contracting = builds
    reason = (
        f"the database's schema is 9002, on which builds work that know 9001 or newer, and this one knows those up to "
        f"{old.revision}: start one of omni-jobs 7.0.0 or newer"
    )
    with open_stack(tmp_path, empty_url, valkey_url, old) as (stack, processes):
        url, _ = processes.api(old)
        processes.ready(url)
        code, out, _ = contracting.run(stack.variables, "migrate", "--check")
        assert (code, "know 9001 or newer work on the schema 9002, older ones do not start" in out) == (8, True), out
        migrated(contracting, stack.variables, "up to date")

        def refused() -> dict[str, Any] | None:
            status, answer = readiness(url)
            return answer if status == 503 else None

        answer = stack.until(refused, START_S)
        assert reason in answer["error"]["message"]
        process, log = processes.worker(old, "first", "old-first@test")
        stack.until(lambda: reason in log.read_text() or None, START_S)
        assert stack.jobs.workers() == []
        for words, expected in ((("migrate",), 1), (("tenants", "list"), 3)):
            code, _, err = old.run(stack.variables, *words)
            assert (code, reason in err) == (expected, True), err
        code, _, err = contracting.run(stack.variables, "migrate", "--down", "--to", "9001")
        assert code == 0, err
        processes.ready(url)
        processes.serving((process, log))
