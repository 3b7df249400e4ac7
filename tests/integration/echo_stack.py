"""A pipeline, echo as a rule, with real workers: ``celery -A workers.app worker`` processes on real services."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import redis
import yaml

from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs, NewJob, NewStage, new_job_id
from omni_jobs.maintenance.rescuer import Rescuer
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.priority import Priority
from omni_jobs.settings import Settings
from omni_jobs.states import StageRunState
from omni_jobs.views import JobView, WorkerView
from tests.integration.job_steps import submit_one

PIPELINE = """
name: echo
version: "1"
stages:
  first:
    kind: echo
    processor: echo
    produces: bytes
    slots: 8
    time_limit_s: 60
    max_payload_bytes: 1000000
  second:
    kind: echo
    processor: echo
    inputs: {first: bytes}
    produces: text
    slots: 8
    time_limit_s: 2
outputs:
  text: {stage: second}
"""
# A stage run of its first stage may lose one worker, so that a test need not start as many as by default.
ONE_LOSS = PIPELINE.replace("  first:\n", "  first:\n    retries: {worker_lost: 1}\n")

OMNI = Path(__file__).parents[2] / "stage_configs" / "qwen2_5_omni.yaml"
START_S = 120.0  # importing torch is slow on a busy machine

T = TypeVar("T")


@dataclass
class EchoWorker:
    """One worker process and its log."""

    stage: str
    slot: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self, number: int = signal.SIGTERM, within_s: float = 30.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(within_s)


@dataclass
class EchoStack:
    """Services' URLs, and what a test does with them. Leaves no process behind."""

    directory: Path
    database_url: str
    broker_url: str
    options: Mapping[str, str] = field(default_factory=dict)
    pipeline: str = "echo"
    config: str = PIPELINE  # its YAML
    other_configs: Sequence[str] = ()  # that stand beside it
    modalities: Sequence[str] = ("text",)

    def __post_init__(self) -> None:
        configs = self.directory / "stage_configs"
        configs.mkdir()
        (configs / f"{self.pipeline}.yaml").write_text(self.config)
        for number, config in enumerate(self.other_configs):
            (configs / f"other-{number}.yaml").write_text(config)
        self.workers: list[EchoWorker] = []
        self.prefix = f"{uuid4().hex}:"
        self.variables = {
            "OMNI_JOBS_DATA_DIR": str(self.directory),
            "OMNI_JOBS_DATABASE_URL": self.database_url,
            "OMNI_JOBS_BROKER_URL": self.broker_url,
            "OMNI_JOBS_BROKER_KEY_PREFIX": self.prefix,
            "OMNI_JOBS_STAGE_CONFIGS": str(configs),
            "OMNI_JOBS_LEASE_S": "3",
            "OMNI_JOBS_HEARTBEAT_S": "0.2",
            "OMNI_JOBS_RESCUE_EVERY_S": "0.2",
            "OMNI_JOBS_POLL_S": "0.5",
            "OMNI_JOBS_PROGRESS_EVERY_S": "0.1",
            "OMNI_JOBS_DRAIN_S": "3",
            **self.options,
        }
        self.settings = Settings(
            **{name.removeprefix("OMNI_JOBS_").lower(): value for name, value in self.variables.items()}  # type: ignore[arg-type]
        )
        self.database = Database(self.database_url)
        self.jobs = Jobs(self.database)
        self.pipelines = load_pipelines(configs)
        self.app = OmniCelery(self.settings, self.pipelines)

    def command(self, *arguments: str, fault: str | None = None) -> tuple[list[str], dict[str, str]]:
        """``fault``: one of ``tests.integration.faulty_worker``."""
        environment = {
            **os.environ,
            **self.variables,
            "CELERY_CUSTOM_WORKER_POOL": "workers.consumer.pool:StagePool",
            "OMP_NUM_THREADS": "1",
            **({"TEST_FAULT": fault} if fault else {}),
        }
        app = "tests.integration.faulty_worker" if fault else "workers.app"
        return [sys.executable, "-m", "celery", "-A", app, "worker", "-P", "custom", *arguments], environment

    def launch(
        self,
        stage: str,
        slot: str | None = None,
        *,
        label: str | None = None,
        fault: str | None = None,
        concurrency: int | None = None,
        host: str | None = None,
    ) -> EchoWorker:
        """Start a worker process. ``label``: of another version of the pipeline than the newest; ``host``: its name."""
        slot = slot or f"{stage}-{len(self.workers)}@test"
        command, environment = self.command(
            "-Q",
            f"{label or self.pipeline}.{stage}",
            "-n",
            slot,
            "--without-gossip",
            "--without-mingle",
            "-l",
            "INFO",
            *(() if concurrency is None else ("-c", str(concurrency))),
            fault=fault,
        )
        environment |= {} if host is None else {"OMNI_JOBS_HOST_NAME": host}
        log = self.directory / f"worker-{len(self.workers)}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        worker = EchoWorker(stage, slot, process, log)
        self.workers.append(worker)
        return worker

    def start(self, *stages: str) -> list[EchoWorker]:
        """Start workers, and wait until they serve."""
        started = [self.launch(stage) for stage in stages]
        for worker in started:
            self.serving(worker)
        return started

    def serving(self, worker: EchoWorker, within_s: float = START_S) -> WorkerView:
        """Wait until the worker has its lease."""

        def look() -> WorkerView | None:
            if worker.process.poll() is not None:
                raise AssertionError(f"the worker ended:\n{worker.log.read_text()[-4000:]}")
            return next((view for view in self.jobs.workers() if view.pid == worker.process.pid), None)

        return self.until(look, within_s)

    def submit(
        self,
        text: str = "hello",
        *,
        ring: bool = True,
        priority: Priority = Priority.NORMAL,
        **parameters: Mapping[str, Any],
    ) -> str:
        """A job; ``first={"delay_s": 1}`` and ``second=…`` set the stages' parameters."""
        pipeline = self.pipelines[self.pipeline]
        job = NewJob(
            job_id=new_job_id(),
            pipeline=pipeline.id,
            pipeline_version=pipeline.version,
            request={
                "model": self.pipeline,
                "messages": [{"role": "user", "content": text}],
                "modalities": list(self.modalities),
                "parameters": parameters,
            },
            modalities=list(self.modalities),
            stages=[
                NewStage(
                    name=stage.name,
                    inputs=tuple(stage.inputs),
                    queue=pipeline.queue(stage.name),
                    retries=stage.retries,
                    queue_limit_s=stage.queue_limit_s,
                )
                for stage in pipeline.stages_for(list(self.modalities))
            ],
            seed=7,
            request_digest=uuid4().hex,
            priority=priority,
        )
        queues = submit_one(self.jobs, job).queues
        if ring:
            self.app.broker.ring(queues)
        return job.job_id

    def ended(self, job_id: str, within_s: float = 60.0) -> JobView:
        """Wait for the job's end, rescuing meanwhile."""
        rescuer = Rescuer(self.jobs, self.app.broker, self.settings.rescue_every_s)

        def look() -> JobView | None:
            rescuer.round()
            view = self.jobs.get(job_id)
            return view if view.status.is_final else None

        return self.until(look, within_s)

    def running(self, job_id: str, stage: str, within_s: float = 60.0) -> JobView:
        """Wait until the stage runs and has said so, rescuing meanwhile."""
        rescuer = Rescuer(self.jobs, self.app.broker, self.settings.rescue_every_s)

        def look() -> JobView | None:
            rescuer.round()
            view = self.jobs.get(job_id)
            found = next(run for run in view.stages if run.name == stage)
            return view if found.status == StageRunState.RUNNING and found.progress else None

        return self.until(look, within_s)

    def until(self, look: Callable[[], T | None], within_s: float) -> T:
        deadline = time.monotonic() + within_s
        while (found := look()) is None:
            if time.monotonic() > deadline:
                logs = "\n".join(worker.log.read_text()[-3000:] for worker in self.workers)
                raise AssertionError(f"not within {within_s} s\n{logs}")
            time.sleep(0.05)
        return found

    def freeze(self, worker: EchoWorker) -> None:
        """SIGSTOP a worker between its transactions: one that is stopped within keeps the write lock of SQLite."""
        while True:
            worker.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, worker.process.pid, os.WSTOPPED)
            if self.database.dialect != "sqlite" or _takes_writes(self.database_url.removeprefix("sqlite:///")):
                return
            worker.process.send_signal(signal.SIGCONT)
            _takes_writes(self.database_url.removeprefix("sqlite:///"))  # once the worker has ended its transaction

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.broker_url)

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
        self.app.close()
        self.database.close()


def _takes_writes(database: str) -> bool:
    """Whether a transaction can write within a second."""
    with closing(sqlite3.connect(database, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


@contextmanager
def speech_stack(
    directory: Path, broker_url: str, checkpoint: Path, options: Mapping[str, str] | None = None
) -> Iterator[EchoStack]:
    """A stack of the shipped Qwen2.5-Omni on this checkpoint, whose leases outlast every test."""
    url = f"sqlite:///{directory / 'jobs.sqlite'}"
    database = Database(url)
    database.migrate()
    database.close()
    config = yaml.safe_load(OMNI.read_text(encoding="utf-8"))
    config["model"]["path"] = str(checkpoint)
    variables = {
        "OMNI_JOBS_LEASE_S": "60",
        "OMNI_JOBS_HEARTBEAT_S": "1",
        "OMNI_JOBS_SPOOL_DIR": str(directory / "spool"),
        **(options or {}),
    }
    stack = EchoStack(directory, url, broker_url, variables, pipeline="qwen2_5_omni", config=yaml.safe_dump(config))
    try:
        yield stack
    finally:
        stack.close()
