"""A rolling upgrade of a pipeline: version 2 comes beside version 1 while 2,000 jobs come, and version 1 goes.

Nothing is lost or doubled, no job has stages of two versions, and each has the result of its version.
UPGRADE_SEEDS=20 runs it with 20 seeds.
"""

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from omni_jobs.client import Client
from omni_jobs.errors import ServerUnavailable
from omni_jobs.jobs import JobFilter
from omni_jobs.maintenance.rescuer import Rescuer
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.states import JobState
from tests import relay
from tests.integration.api_server import ApiServer, serve
from tests.integration.echo_stack import EchoStack, EchoWorker
from workers.offline import OmniLLM

JOBS = 2000
CLIENTS = 4
ENDED_WITHIN_S = 120.0
FIRST = """
name: echo
version: "1"
stages:
  first:
    kind: echo
    processor: echo
    parameters: {payload_bytes: 64}
    produces: bytes
    slots: 8
  second:
    kind: relay
    processor: sum_bytes
    inputs: {first: bytes}
    produces: text
    slots: 8
outputs:
  text: {stage: second}
"""
# Other processors, a renamed stage, and another field in the payload that it hands on.
NEXT = """
name: echo
version: "2"
stages:
  talk:
    kind: echo
    processor: answer
    parameters: {max_tokens: 3}
    produces: text
    slots: 8
  second:
    kind: relay
    processor: reverse_text
    inputs: {talk: text}
    produces: text
    slots: 8
outputs:
  text: {stage: second}
"""
PROMPTS = [f"Line {number} of the log" for number in range(7)]


@pytest.fixture
def stack(
    database_url: str, valkey_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EchoStack]:
    relay.install(tmp_path / "site", monkeypatch)
    options = {"OMNI_JOBS_STORAGE_SYNC": "false", "OMNI_JOBS_MIN_FREE_BYTES": "0", "OMNI_JOBS_MAX_QUEUED_JOBS": "5000"}
    stack = EchoStack(tmp_path, database_url, valkey_server, options, config=FIRST)
    yield stack
    stack.close()


def request_of(prompt: str) -> dict[str, Any]:
    """A prompt has a seed of its own, of which the bytes are made that version 1 hands on."""
    return {"messages": [{"role": "user", "content": prompt}], "seed": PROMPTS.index(prompt)}


class Clients:
    """Threads that submit jobs to the pipeline, whatever its version, by turns to all servers there are.

    They stop at a moment of the upgrade until its step before is done, however fast they are.
    """

    def __init__(self, servers: list[ApiServer], moment: int) -> None:
        self.servers = servers
        self._moment = moment
        self._moved = threading.Condition()
        self.jobs: dict[str, str] = {}  # the prompt of each
        self.errors: list[str] = []
        self._numbers = itertools.count()
        self.threads = [threading.Thread(target=self._submit, daemon=True) for _ in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def _submit(self) -> None:
        try:
            while (number := next(self._numbers)) < JOBS:
                with self._moved:
                    self._moved.wait_for(lambda number=number: number < self._moment)
                self._submit_one(number)
        except Exception as error:  # noqa: BLE001 - the test says which errors clients saw
            self.errors.append(repr(error))

    def _submit_one(self, number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        body = {"model": "echo", **request_of(prompt)}
        for turn in itertools.count(number):  # a server that stops is left for the next one, as a load balancer does
            server = self.servers[turn % len(self.servers)]
            try:
                with Client(f"http://{server.host}:{server.port}") as client:
                    job = client.submit(body, idempotency_key=f"job-{number}")
            except ServerUnavailable:
                continue
            else:
                self.jobs[job.id] = prompt
                return

    def reach(self, moment: int) -> None:
        """Wait until the present moment's jobs are submitted, and let the clients go on to this moment."""
        deadline = time.monotonic() + ENDED_WITHIN_S
        while len(self.jobs) < self._moment and not self.errors:
            assert time.monotonic() < deadline, f"{len(self.jobs)} of {self._moment} submitted"
            time.sleep(0.005)
        with self._moved:
            self._moment = moment
            self._moved.notify_all()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(ENDED_WITHIN_S)
            assert not thread.is_alive()


def results_of(reference: str, stack: EchoStack) -> dict[str, str]:
    """What ``OmniLLM`` makes of each prompt with this version."""
    with OmniLLM(reference, settings=stack.settings) as llm:
        made = [llm.generate([request_of(prompt)])[0] for prompt in PROMPTS]
    return {prompt: each.text or "" for prompt, each in zip(PROMPTS, made, strict=True)}


@pytest.mark.long
@pytest.mark.timeout(280)
@pytest.mark.parametrize("seed", range(int(os.environ.get("UPGRADE_SEEDS", "1"))))
def test_jobs_end_on_the_version_they_began_with(stack: EchoStack, seed: int) -> None:
    chance = random.Random(seed)
    moments = [*sorted(chance.sample(range(100, JOBS - 100), 4)), JOBS]
    configs = stack.settings.resolved_stage_configs
    old: list[EchoWorker] = stack.start("first", "second")
    servers: list[ApiServer] = []
    rescuer = Rescuer(stack.jobs, stack.app.broker, stack.settings.rescue_every_s)
    with ExitStack() as running:
        before = running.enter_context(serve(stack.settings))
        servers.append(before)
        clients = Clients(servers, moments[0])

        clients.reach(moments[1])  # the file and the workers of version 2, beside version 1
        (configs / "next.yaml").write_text(NEXT)
        new = [stack.launch("talk"), stack.launch("second")]
        for worker in new:
            stack.serving(worker)
        if chance.random() < 0.5:  # a worker of version 1 dies meanwhile, and comes back as one of version 1
            victim = chance.randrange(2)
            stage = old[victim].stage
            old[victim].stop(signal.SIGKILL)
            old[victim] = stack.launch(stage, old[victim].slot, label="echo@1")

        clients.reach(moments[2])  # a server that knows both, beside the one that knows version 1 alone
        after = running.enter_context(serve(stack.settings))
        servers.append(after)
        clients.reach(moments[3])
        servers.remove(before)
        before.stop()

        clients.reach(moments[4])
        assert after.http.post("/v1/pipelines/echo@1/drain").status_code == 200
        drained_at = time.time()
        stack.database.run(lambda tx: tx.execute(text("UPDATE pipeline_versions SET draining_at = draining_at - 60")))

        def may_go() -> bool | None:
            rescuer.round()
            shown = after.http.get("/v1/pipelines/versions").json()["versions"]
            return next(each for each in shown if each["version"] == "1")["workers_may_go"] or None

        stack.until(may_go, ENDED_WITHIN_S)
        for worker in old:
            stack.serving(worker)
            assert worker.stop() == 0
        (configs / "echo.yaml").unlink()
        clients.join()
        assert clients.errors == []
        assert len(clients.jobs) == JOBS

        jobs = {}

        def all_ended() -> bool | None:
            rescuer.round()
            open_jobs = stack.jobs.counts().jobs
            return not any(open_jobs.values()) or None

        stack.until(all_ended, ENDED_WITHIN_S)
        cursor = None
        while True:
            page = stack.jobs.list(JobFilter(), limit=100, cursor=cursor)
            jobs.update({job.id: job for job in page.jobs})
            cursor = page.next_cursor
            if cursor is None:
                break
    assert set(jobs) == set(clients.jobs), "lost or doubled"
    versions = Counter(job.pipeline_version for job in jobs.values())
    assert min(versions["1"], versions["2"]) >= 50, versions
    (configs / "echo.yaml").write_text(FIRST)
    expected = {version: results_of(f"echo@{version}", stack) for version in ("1", "2")}
    for made in expected.values():
        assert len(set(made.values())) == len(PROMPTS), "each prompt has an answer of its own"
    assert not set(expected["1"].values()) & set(expected["2"].values())
    stages = {pipeline.version: list(pipeline.stages) for pipeline in load_pipelines(configs).values()}
    for job in jobs.values():
        assert job.status is JobState.COMPLETED, job
        assert [run.name for run in job.stages] == stages[job.pipeline_version]
        assert job.result is not None
        assert job.result["text"] == expected[job.pipeline_version][clients.jobs[job.id]]
        if job.created_at.timestamp() > drained_at + 1:
            assert job.pipeline_version == "2"
