"""``NewJob``: a job from its admission until it stands in SQL. The intake and ``OmniLLM`` both admit requests to it."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_jobs.identity import DEFAULT_TENANT, PipelineId
from omni_jobs.priority import Priority
from omni_jobs.retry import DEFAULT_RETRIES, RetryLimits

_LAST_MICROS = (1 << 48) * 1000 - 1000  # of the milliseconds that an id has room for


def new_job_id() -> str:
    """Return a new job id: ``job-`` and a UUIDv7 in hex. Ids sort by the time they were made, to a quarter of a µs."""
    millis, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000  # RFC 9562, 6.2, method 3
    value = (millis << 80) | (7 << 76) | (fraction << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"job-{value:032x}"


def first_job_id(at: float) -> str:
    """Return the lowest id that ``new_job_id`` makes at this time, in seconds since 1970 to a µs, or later."""
    micros = min(max(round(at * 1e6), 0), _LAST_MICROS)
    millis, rest = divmod(micros, 1000)
    value = (millis << 80) | (7 << 76) | (-(-rest * 4096 // 1000) << 64) | (0b10 << 62)
    return f"job-{value:032x}"


@dataclass(frozen=True, slots=True)
class NewMedium:
    """One medium of a new job, or the file of its prompt embeddings, decoded from base64."""

    media_type: str  # found in the bytes, whatever the client says
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class NewStage:
    """A stage of a ``NewJob``; the submit makes a stage run of it."""

    name: str
    inputs: Sequence[str]  # earlier stages; those that the job has not are left out; empty: the job's request
    queue: str  # its stage's, Pipeline.queue
    retries: RetryLimits = DEFAULT_RETRIES
    queue_limit_s: float | None = None  # when it waits longer than this, its job expires


@dataclass(frozen=True, slots=True)
class Origin:
    """A job as its forks are made of it. How far its stages are, a fork finds out as it is written."""

    job_id: str
    pipeline: PipelineId
    pipeline_version: str
    request: Mapping[str, Any]  # NewJob.request
    media: Sequence[Mapping[str, Any]]  # NewJob.media
    metadata: Mapping[str, Any]
    seed: int
    priority: Priority
    cost: float
    keeps_payloads: bool
    stored_bytes: Mapping[str, int]  # of the result, the payload and the artifacts of each of its stages


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a fork takes over from another job: the ends of these stages, with their payloads and artifacts.

    job_id        the other job
    stages        those that are taken over
    stored_bytes  of their results, payloads and artifacts
    artifacts     what the fork has to have of them: names without suffixes, each with the stage that has made it
    """

    job_id: str
    stages: frozenset[str]
    stored_bytes: int = 0
    artifacts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewVersion:
    """The version of its pipeline on which a job is to go on.

    stages   those of the job's stages that can go on there, by name
    differs  of each other one, why it cannot
    """

    pipeline: PipelineId
    version: str
    stages: Mapping[str, NewStage]
    differs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A request that was checked whole and can be run.

    job_id           new_job_id()
    pipeline         workers of this pipeline file alone run it
    request          JSON: ``model``, ``messages`` (a medium is {"type": "audio", "media": its number}; empty with
                     ``prompt_embeds``, which is {"media": 0}), ``modalities``, ``audio`` ({"voice", "format"}, if the
                     job makes audio) and so each further output that is stored as an artifact, ``parameters``
                     ({stage: {name: value}} as the request sets them), ``return_token_ids``, ``previews`` (if the job
                     asks for them), ``tools``, ``tool_choice`` and ``parallel_tool_calls`` (if it offers tools),
                     ``kept`` (``Submission.kept``, if there is any). A message has ``role``, ``content`` and, as far
                     as it has them, ``tool_calls``, ``tool_call_id``
    stages           those that the job runs, each after its inputs
    seed             given or drawn, 0 … 2**63-1
    request_digest   equal for the same request sent again
    unstored         its media, by number, until they are in the object store
    media            what the object store has of them: {key, size, digest, media_type}, by number
    priority         among its tenant's jobs
    cost             what its turn costs its tenant; 1: a plain job's
    expires_in_s     seconds from the submit on; at most one of the two is given
    expires_at       seconds since 1970; it may have passed, because admission has no clock
    keeps_payloads   its payloads stay after the stages that took them, and after its end, so that it can be forked
    traceparent      the span of its submit, in W3C's form; None: nobody traces it
    reuse            of a fork: what it takes over; its media are not kept for it, because no stage of it reads them
    """

    job_id: str
    pipeline: PipelineId
    pipeline_version: str
    request: Mapping[str, Any]
    modalities: Sequence[str]
    stages: Sequence[NewStage]
    seed: int
    request_digest: str
    unstored: Sequence[NewMedium] = ()
    media: Sequence[Mapping[str, Any]] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tenant: str = DEFAULT_TENANT
    priority: Priority = Priority.NORMAL
    cost: float = 1.0
    idempotency_key: str | None = None
    expires_in_s: float | None = None
    expires_at: float | None = None
    keeps_payloads: bool = False
    reuse: Reuse | None = None
    traceparent: str | None = None
