"""What workers do to the jobs of an API server that has none, in few words."""

from omni_jobs.errors import ModelError
from omni_jobs.jobs import Claim, Completion, Failure, NewWorker, StoredArtifact
from omni_jobs.storage import artifact_key
from omni_jobs.views import JobView
from tests.integration.api_server import ApiServer
from tests.integration.job_steps import fail, release


def claimed(api: ApiServer, job_id: str) -> Claim:
    """Claim the queued stage run of a job as a worker would, and leave those of other jobs."""
    jobs = api.services.jobs
    stage = next(stage for stage in jobs.get(job_id).stages if stage.status == "queued")
    worker = f"w-{stage.name}"
    echo = api.services.pipelines["echo"]
    new = NewWorker(worker, worker, echo.stage_id(stage.name), "host", 1, 5, echo.version)
    jobs.register_worker(new, 60.0)
    claims = jobs.claim(worker, 100).claims
    release(jobs, [(claim.stage_run_id, claim.attempt) for claim in claims if claim.job_id != job_id], worker)
    [claim] = [claim for claim in claims if claim.job_id == job_id]
    return claim


def completed(api: ApiServer, job_id: str, sound: bytes = b"RIFF") -> JobView:
    """Run the remaining stages of a job as workers would. Its last stage makes ``audio.wav``."""
    while not (view := api.services.jobs.get(job_id)).status.is_final:
        claim = claimed(api, job_id)
        artifacts = []
        if claim.stage == "second":
            key = artifact_key(job_id, claim.stage, claim.attempt, "audio.wav")
            artifacts = [StoredArtifact("audio.wav", "audio/wav", api.services.store.put(key, [sound]))]
        done = Completion(
            claim.stage_run_id, claim.attempt, f"w-{claim.stage}", inline_payload=b"x", payload_bytes=1,
            artifacts=artifacts, result={"text": claim.stage},
        )  # fmt: skip
        assert api.services.jobs.report([done])[0].won
    return view


def failed(api: ApiServer, job_id: str) -> JobView:
    claim = claimed(api, job_id)
    error = ModelError("the prompt broke it", stage=claim.stage)
    fail(api.services.jobs, Failure(claim.stage_run_id, claim.attempt, f"w-{claim.stage}", error))
    return api.services.jobs.get(job_id)
