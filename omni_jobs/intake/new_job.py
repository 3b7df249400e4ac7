"""``new_job``: turns an admitted request into the job that is written to SQL."""

from collections.abc import Mapping, Sequence
from typing import Any

from omni_jobs.jobs import NewJob, NewStage
from omni_jobs.requests import AdmittedRequest
from omni_jobs.views import DEFAULT_TENANT


def new_job(
    job_id: str,
    admitted: AdmittedRequest,
    media: Sequence[Mapping[str, Any]],
    *,
    tenant: str = DEFAULT_TENANT,
    expires_in_s: float | None = None,
) -> NewJob:
    """Return the job of an admitted request, ready to be written to SQL.

    ``media``: {key, size, digest, media_type} for each of the request's media, which are in the object store already.
    """
    pipeline = admitted.pipeline
    return NewJob(
        job_id=job_id,
        pipeline=pipeline.name,
        pipeline_version=pipeline.version,
        pipeline_digest=pipeline.digest,
        request=admitted.request,
        modalities=admitted.modalities,
        stages=[
            NewStage(
                stage.name,
                tuple(stage.inputs),
                pipeline.queue(stage.name),
                retries=stage.retries,
                queue_limit_s=stage.queue_limit_s,
            )
            for stage in admitted.stages
        ],
        seed=admitted.seed,
        request_digest=admitted.request_digest,
        media=media,
        metadata=admitted.metadata,
        tenant=tenant,
        expires_at=admitted.expires_at,
        expires_in_s=expires_in_s,
    )
