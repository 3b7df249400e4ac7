"""``HandWorker``: what a worker writes of one job, at the moments that a test chooses."""

import threading
from typing import Any

from omni_jobs.jobs import Claim, Completion, Jobs, NewWorker, ProgressReport, StoredArtifact, TextPiece
from omni_jobs.storage import artifact_key
from tests.integration.api_server import ApiServer
from tests.integration.job_steps import release

LATE_S = 30.0


class HandWorker:
    """Claims the stage runs of one job, and writes what a worker writes."""

    def __init__(self, api: ApiServer, job_id: str, pipeline: str = "echo") -> None:
        self.jobs: Jobs = api.services.jobs
        self.store = api.services.store
        self.job_id = job_id
        self.pipeline = api.services.pipelines[pipeline]

    def claim(self, stage: str) -> Claim:
        its = self.pipeline.stage_id(stage)
        self.jobs.register_worker(NewWorker(f"w-{stage}", f"w-{stage}", its, "host", 1, 5, self.pipeline.version), 60.0)
        [claim] = self.jobs.claim(f"w-{stage}", 100).claims
        assert claim.job_id == self.job_id
        return claim

    def write(self, claim: Claim, start: int, text: str, *, done: int = 1, **more: Any) -> None:
        """Write as the ledger does: a piece where the stage run is watched, else all of the text."""
        until_watched(self.jobs, claim)
        report = ProgressReport(
            claim.stage_run_id, claim.attempt, done, None, "tokens", chars=start + len(text), **more
        )
        self.jobs.report_progress([report], [TextPiece(claim.stage_run_id, claim.attempt, start, text)])

    def complete(self, claim: Claim, **more: Any) -> None:
        done = Completion(
            claim.stage_run_id, claim.attempt, f"w-{claim.stage}", inline_payload=b"x", payload_bytes=1, **more
        )
        assert self.jobs.report([done])[0].won

    def lose(self, claim: Claim) -> None:
        release(self.jobs, [(claim.stage_run_id, claim.attempt)], f"w-{claim.stage}")

    def artifact(
        self, claim: Claim, name: str = "audio.wav", media_type: str = "audio/wav", data: bytes = b"RIFF"
    ) -> StoredArtifact:
        key = artifact_key(self.job_id, claim.stage, claim.attempt, name)
        return StoredArtifact(name, media_type, self.store.put(key, [data]))


def until_watched(jobs: Jobs, claim: Claim, worker: str | None = None) -> None:
    """The stream that begins has its job watched before it reads that first."""
    woken = threading.Event()
    for _ in range(int(LATE_S / 0.01)):
        if claim.stage_run_id in jobs.wishes(worker or f"w-{claim.stage}").watched:
            return
        woken.wait(0.01)
    raise AssertionError("nobody watches")
