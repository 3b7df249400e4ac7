"""Every error omni-jobs raises on purpose, in one tree.

    OmniJobsError
    ├── InvalidInput            the caller must change something
    │   ├── InvalidRequest          a job's body; names the field
    │   ├── RequestTooLarge         the body or one of its media is over a limit
    │   ├── UnsupportedContentType  the body is not JSON
    │   ├── ConfigError             a stage config or a setting; names file, line and field
    │   ├── NotFound                no such job, artifact or pipeline
    │   └── Conflict                the thing exists in a state that forbids the wish
    ├── PayloadError            bytes from storage that are not what they must be; names the field
    │   ├── PayloadTooLarge
    │   └── PayloadCorrupt
    ├── StorageError            the object store; names the key
    │   ├── ObjectMissing
    │   ├── ObjectCorrupt           the digest or the size is wrong
    │   └── StorageUnavailable      retryable
    ├── StageError              a stage run failed; names the stage
    │   ├── ModelError              the model or its engine refused or broke on this input
    │   ├── OutOfMemory             retryable
    │   ├── TimeLimitExceeded
    │   ├── WorkerLost              retryable; its lease ran out while it held the stage run
    │   └── EngineDead              retryable; the engine under the runner is gone
    ├── ModelMissing            this server has no checkpoint for the pipeline
    ├── DatabaseUnavailable     retryable; SQL does not answer, or has another schema
    ├── BrokerUnavailable       retryable; the row in SQL is the truth, a hint can wait
    ├── BadMessage              what came out of a queue is not a hint of ours
    ├── ServerUnavailable       retryable; the client got no answer from the API
    ├── StackError              the embedded stack did not start, or cannot go on
    └── Fenced                  this worker's lease is gone: it must stop writing

Each error knows its ``code`` (stable, for machines), whether another attempt can
help (``retryable``), the HTTP status it maps to, and what it is about.
A class's docstring is its default message.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "BadMessage",
    "BrokerUnavailable",
    "ConfigError",
    "Conflict",
    "DatabaseUnavailable",
    "EngineDead",
    "Fenced",
    "InvalidInput",
    "InvalidRequest",
    "ModelError",
    "ModelMissing",
    "NotFound",
    "ObjectCorrupt",
    "ObjectMissing",
    "OmniJobsError",
    "OutOfMemory",
    "PayloadCorrupt",
    "PayloadError",
    "PayloadTooLarge",
    "RequestTooLarge",
    "ServerUnavailable",
    "StackError",
    "StageError",
    "StorageError",
    "StorageUnavailable",
    "TimeLimitExceeded",
    "UnsupportedContentType",
    "WorkerLost",
]


class OmniJobsError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str | None = None,
        stage: str | None = None,
        key: str | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        self.field = field
        self.stage = stage
        self.key = key
        super().__init__(self.message)

    def __str__(self) -> str:
        about = [
            f"{name} {value}"
            for name, value in (("stage", self.stage), ("key", self.key), ("field", self.field))
            if value is not None
        ]
        return f"{self.message} ({', '.join(about)})" if about else self.message

    def to_dict(self) -> dict[str, Any]:
        """What the API shows and SQL keeps; absent parts are left out."""
        found = {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            "field": self.field,
            "stage": self.stage,
            "key": self.key,
        }
        return {name: value for name, value in found.items() if value is not None}


class InvalidInput(OmniJobsError):
    """The input is not valid."""

    code = "invalid_input"
    http_status = 422


class InvalidRequest(InvalidInput):
    """The request is not valid."""

    code = "invalid_request"


class RequestTooLarge(InvalidInput):
    """The request is larger than the server takes."""

    code = "request_too_large"
    http_status = 413


class UnsupportedContentType(InvalidInput):
    """The body must be JSON: send Content-Type: application/json."""

    code = "unsupported_content_type"
    http_status = 415


class ConfigError(InvalidInput):
    """The configuration is not valid."""

    code = "invalid_config"
    http_status = 500

    def __init__(
        self,
        message: str | None = None,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        stage: str | None = None,
    ) -> None:
        super().__init__(message, field=field, stage=stage)
        self.file = file
        self.line = line

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        what = f"{self.field}: {self.message}" if self.field else self.message
        return f"{where}: {what}" if where else what


class NotFound(InvalidInput):
    """There is no such thing."""

    code = "not_found"
    http_status = 404


class Conflict(InvalidInput):
    """The state of the thing forbids this."""

    code = "conflict"
    http_status = 409


class PayloadError(OmniJobsError):
    """The payload is not valid."""

    code = "payload_invalid"


class PayloadTooLarge(PayloadError):
    """The payload is larger than the limit."""

    code = "payload_too_large"


class PayloadCorrupt(PayloadError):
    """The payload's bytes are not what their header says."""

    code = "payload_corrupt"


class StorageError(OmniJobsError):
    """The object store refused."""

    code = "storage_error"


class ObjectMissing(StorageError):
    """The object is not there."""

    code = "object_missing"
    http_status = 404


class ObjectCorrupt(StorageError):
    """The object's bytes do not match its digest."""

    code = "object_corrupt"


class StorageUnavailable(StorageError):
    """The object store does not answer."""

    code = "storage_unavailable"
    retryable = True
    http_status = 503


class StageError(OmniJobsError):
    """The stage run failed."""

    code = "stage_failed"


class ModelError(StageError):
    """The model could not process this input."""

    code = "model_error"


class OutOfMemory(StageError):
    """The device has no memory left for this stage run."""

    code = "out_of_memory"
    retryable = True


class TimeLimitExceeded(StageError):
    """The stage run took longer than the stage's time limit."""

    code = "time_limit"


class WorkerLost(StageError):
    """The worker holding this stage run is gone."""

    code = "worker_lost"
    retryable = True


class EngineDead(StageError):
    """The engine under the runner is gone."""

    code = "engine_dead"
    retryable = True


class ModelMissing(OmniJobsError):
    """This server has no checkpoint for the pipeline."""

    code = "model_missing"
    http_status = 503


class DatabaseUnavailable(OmniJobsError):
    """The database does not answer."""

    code = "database_unavailable"
    retryable = True
    http_status = 503


class BrokerUnavailable(OmniJobsError):
    """The broker does not answer."""

    code = "broker_unavailable"
    retryable = True
    http_status = 503


class BadMessage(OmniJobsError):
    """The message is not a hint of ours."""

    code = "bad_message"


class ServerUnavailable(OmniJobsError):
    """The API server does not answer."""

    code = "server_unavailable"
    retryable = True
    http_status = 503


class StackError(OmniJobsError):
    """The embedded stack did not start."""

    code = "stack_failed"


class Fenced(OmniJobsError):
    """This worker's lease is gone: another may hold its stage runs."""

    code = "fenced"
