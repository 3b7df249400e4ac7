"""Jobs and workers in every state that a page shows, made by hand on the parts of a server."""

import io
import wave
from dataclasses import dataclass

import numpy as np

from omni_jobs.errors import ModelError, OmniJobsError
from omni_jobs.jobs import Claim, Completion, Failure, NewWorker, ProgressReport, StoredArtifact, TextPiece
from omni_jobs.storage.keys import artifact_key
from tests.integration.api_server import ApiServer
from tests.integration.hand_worker import until_watched
from tests.integration.job_steps import fail, release
from tests.oracles import samples

ECHO = {"model": "echo", "messages": [{"role": "user", "content": "Tell me a story about a lighthouse."}]}


def tone(seconds: float = 2.0) -> bytes:
    """A WAV file that swells, so that its waveform has a form."""
    t = np.arange(int(8000 * seconds)) / 8000
    samples_ = (np.sin(t * 1400) * np.sin(t * np.pi / seconds * 3) ** 2 * 22000).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples_.tobytes())
    return buffer.getvalue()


@dataclass
class Hands:
    """Does by hand what workers do to the jobs of the pipeline ``echo``."""

    api: ApiServer

    def submitted(self, text: str = "", headers: dict[str, str] | None = None, **fields: object) -> str:
        messages = {"messages": [{"role": "user", "content": text}]} if text else {}
        answer = self.api.http.post("/v1/jobs", json=ECHO | messages | fields, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def claimed(self, job_id: str, stage: str = "first") -> Claim:
        """Claim the queued stage run of this job, by a worker that stays, and no other's."""
        jobs = self.api.services.jobs
        echo = self.api.services.pipelines["echo"]
        worker = f"worker-{stage}"
        if not any(each.id == worker for each in jobs.workers()):
            jobs.register_worker(
                NewWorker(worker, f"{stage}@host-a", echo.stage_id(stage), "host-a", 4711, 8, echo.version), 600.0
            )
        claims = jobs.claim(worker, 100).claims
        release(jobs, [(each.stage_run_id, each.attempt) for each in claims if each.job_id != job_id], worker)
        [claim] = [each for each in claims if each.job_id == job_id]
        return claim

    def told(
        self, claim: Claim, done: int, total: int | None = 64, *, unit: str = "tokens", **more: str | None
    ) -> None:
        report = ProgressReport(claim.stage_run_id, claim.attempt, done, total, unit, **more)  # type: ignore[arg-type]
        self.api.services.jobs.report_progress([report])

    def wrote(self, claim: Claim, start: int, text: str) -> None:
        """Write a piece of text, as a worker does once somebody watches the job."""
        until_watched(self.api.services.jobs, claim, f"worker-{claim.stage}")
        stop = start + len(text)
        report = ProgressReport(claim.stage_run_id, claim.attempt, stop, None, "tokens", chars=stop)
        piece = TextPiece(claim.stage_run_id, claim.attempt, start, text)
        self.api.services.jobs.report_progress([report], [piece])

    def made(self, claim: Claim, text: str = "Hello", **files: tuple[str, bytes]) -> None:
        """End a stage run well. ``files``: the artifacts it leaves, names without their suffixes."""
        artifacts = []
        for name, (media_type, data) in files.items():
            full = f"{name}.{media_type.partition('/')[2]}"
            key = artifact_key(claim.job_id, claim.stage, claim.attempt, full)
            ref = self.api.services.store.put(key, [data], media_type=media_type)
            artifacts.append(StoredArtifact(full, media_type, ref))
        done = Completion(
            claim.stage_run_id, claim.attempt, f"worker-{claim.stage}", inline_payload=b"x", payload_bytes=344,
            artifacts=artifacts, result={"text": text},
        )  # fmt: skip
        assert self.api.services.jobs.report([done])[0].won

    def completed(self, job_id: str, text: str = "Hello", **files: tuple[str, bytes]) -> None:
        self.made(self.claimed(job_id))
        self.made(self.claimed(job_id, "second"), text, **files)

    def failed(self, job_id: str, stage: str = "first", error: OmniJobsError | None = None) -> None:
        claim = self.claimed(job_id, stage)
        error = error or ModelError("CUDA out of memory: tried to allocate 2.00 GiB", stage=claim.stage)
        fail(self.api.services.jobs, Failure(claim.stage_run_id, claim.attempt, f"worker-{stage}", error))


def one_of_each(api: ApiServer) -> dict[str, str]:
    """Make a job in each state, and return their ids by a word for each."""
    hands = Hands(api)
    found = {}
    found["media"] = hands.submitted(metadata={"project": "sea", "take": "3"})
    picture, sound = ("image/png", samples.image(96, 64)), ("audio/wav", tone())
    hands.completed(found["media"], "The lighthouse keeper hummed to the fog.", image=picture, audio=sound)
    found["failed"] = hands.submitted(metadata={"project": "land"})
    hands.made(hands.claimed(found["failed"]))
    hands.failed(found["failed"], "second")
    found["cancelled"] = hands.submitted()
    assert api.http.post(f"/v1/jobs/{found['cancelled']}/cancel").status_code == 200
    found["running"] = hands.submitted()
    claim = hands.claimed(found["running"])
    hands.told(claim, 21, text="Once upon a time there stood a lighthouse")
    found["queued"] = hands.submitted()
    found["other"] = hands.submitted(model="echo_media")
    return found
