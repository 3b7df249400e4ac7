"""The echo pipeline's jobs and workers, written and claimed by a benchmark itself: what the database alone does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.services import database
from omni_jobs.database.database import Database
from omni_jobs.identity import DEFAULT_TENANT
from omni_jobs.jobs import Claim, Completion, Jobs, NewJob, NewWorker, new_job_id
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.priority import Priority
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings

__all__ = ["LEASE_S", "EchoJobs", "complete", "empty_database", "worker"]

LEASE_S = 100_000.0
"""The lease of a benchmark's worker, which renews none."""


@contextmanager
def empty_database(kind: str) -> Iterator[Database]:
    """A context manager that yields a migrated database of this kind, without jobs."""
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory, database(kind) as url:
        settings = Settings(data_dir=Path(directory), database_url=url)
        db = Database(settings.resolved_database_url)
        try:
            db.migrate()
            yield db
        finally:
            db.close()


class EchoJobs:
    """Makes jobs of the echo pipeline, both of whose stages take ``delay_s`` seconds and do nothing."""

    def __init__(self, settings: Settings, delay_s: float = 0.0) -> None:
        """Admit the request that all jobs share."""
        body = {
            "model": "echo",
            "messages": [{"role": "user", "content": "Hello"}],
            "stages": {stage: {"delay_s": delay_s} for stage in ("first", "second")},
        }
        pipelines = load_pipelines(settings.resolved_stage_configs)
        self.pipeline = pipelines["echo"]
        self._admitted = admit(parse(body, settings), pipelines, settings)

    def new(self, count: int, tenant: str = DEFAULT_TENANT, priority: Priority = Priority.NORMAL) -> list[NewJob]:
        """Return ``count`` new jobs of a tenant."""
        admitted = self._admitted
        return [replace(admitted, job_id=new_job_id(), tenant=tenant, priority=priority) for _ in range(count)]


def worker(pipeline: Pipeline, stage: str, slots: int, worker_id: str | None = None) -> NewWorker:
    """Return a worker of a stage, which is named after it unless ``worker_id`` is given."""
    name = worker_id or f"worker-of-{stage}"
    return NewWorker(name, name, pipeline.stage_id(stage), "localhost", 1, slots, pipeline.version)


def complete(jobs: Jobs, worker_id: str, claims: Sequence[Claim]) -> None:
    """Complete what a worker has claimed. Raises SystemExit when an attempt was not the worker's any more."""
    done = [Completion(claim.stage_run_id, claim.attempt, worker_id, inline_payload=b"payload") for claim in claims]
    if not all(outcome.won for outcome in jobs.report(done)):
        raise SystemExit(f"{worker_id} completed what was not its own")
