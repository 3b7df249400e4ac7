"""Every error omni-jobs raises on purpose, in one tree.

    OmniJobsError
    ├── InvalidInput            the caller must change something
    │   ├── InvalidRequest          a job's body; names the field
    │   ├── RequestTooLarge         the body or one of its media is over a limit
    │   ├── UnsupportedContentType  the body is not JSON
    │   ├── MalformedRequest        it is not HTTP as this server speaks it
    │   ├── HeadTooLarge            its head has too many bytes or headers
    │   ├── UnknownHost             it names a host that this server is not
    │   ├── ForeignOrigin           a page of another origin sent it
    │   ├── RangeNotSatisfiable     the part asked for lies behind the end
    │   ├── ConfigError             a stage config or a setting; names file, line and field
    │   ├── NotFound                no such job, artifact or pipeline
    │   ├── Conflict                the thing exists in a state that forbids the wish
    │   └── Gone                    it was there and its time to live is over
    ├── PayloadError            bytes from storage that are not what they must be; names the field
    │   ├── PayloadTooLarge
    │   └── PayloadCorrupt
    ├── StorageError            the object store; names the key
    │   ├── ObjectMissing
    │   ├── ObjectCorrupt           the digest or the size is wrong
    │   └── StorageUnavailable      retryable
    │       └── StorageFull             no room is left; it may come back
    ├── StageError              a stage run failed; names the stage
    │   ├── ModelError              the model or its engine refused or broke on this input
    │   ├── OutOfMemory             retryable
    │   ├── TimeLimitExceeded
    │   ├── WorkerLost              retryable; its lease ran out while it held the stage run
    │   ├── EngineDead              retryable; the engine under the runner is gone
    │   └── Quarantined             it was lost with its worker too often to be tried again
    ├── Expired                 a job ran out of time; says whether it ever started
    │   ├── DeadlineExceeded        its own deadline passed
    │   └── QueueTimeLimit          it waited for a stage longer than that stage lets it
    ├── TooManyJobs             retryable; as much waits as may wait
    ├── TooSlow                 retryable; the client did not send the rest of its request in time
    ├── ServerBusy              retryable; as many connections or bytes of bodies are held as may be
    ├── DecodersUnavailable     retryable; no process decodes media just now: all are taken, or none starts
    ├── ModelMissing            this server has no checkpoint for the pipeline
    ├── DatabaseUnavailable     retryable; SQL does not answer, or has another schema
    ├── BrokerUnavailable       retryable; the row in SQL is the truth, a hint can wait
    ├── BadMessage              what came out of a queue is not a hint of ours
    ├── ServerUnavailable       retryable; the client got no answer from the API
    ├── StackError              the embedded stack did not start, or cannot go on
    ├── SlotTaken               a worker lives in the slot that this one was to take
    └── Fenced                  this worker's lease is gone: it must stop writing

Each error knows its ``code`` (stable, for machines), whether another attempt can
help (``retryable``), the HTTP status it maps to, and what it is about.
A class's docstring is its default message.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal

__all__ = [
    "BadMessage",
    "BrokerUnavailable",
    "ConfigError",
    "Conflict",
    "DatabaseUnavailable",
    "DeadlineExceeded",
    "DecodersUnavailable",
    "EngineDead",
    "Expired",
    "Fenced",
    "ForeignOrigin",
    "Gone",
    "HeadTooLarge",
    "InvalidInput",
    "InvalidRequest",
    "MalformedRequest",
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
    "Quarantined",
    "QueueTimeLimit",
    "RangeNotSatisfiable",
    "RequestTooLarge",
    "RetryClass",
    "ServerBusy",
    "ServerUnavailable",
    "SlotTaken",
    "StackError",
    "StageError",
    "StorageError",
    "StorageFull",
    "StorageUnavailable",
    "TimeLimitExceeded",
    "TooManyJobs",
    "TooSlow",
    "UnknownHost",
    "UnsupportedContentType",
    "WorkerLost",
]


RetryClass = Literal["worker_lost", "fenced", "out_of_memory", "storage", "model_error", "time_limit"]
"""What went wrong with an attempt, as far as trying again is concerned; bad input has none."""


class OmniJobsError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    retry_class: ClassVar[RetryClass | None] = None  # counted against the stage's ``retries`` of that name
    http_status: ClassVar[int] = 500
    details: ClassVar[tuple[str, ...]] = ("field", "stage", "key")  # keyword arguments and attributes: what it is about

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
        """Return the error as JSON: code, message, retryable, and those of its details that are not None."""
        details = {name: getattr(self, name) for name in self.details}
        return {
            "code": self.code,
            "message": self.message,
            "retryable": self.retryable,
            **{name: value for name, value in details.items() if value is not None},
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> OmniJobsError:
        """Return the error that ``to_dict`` wrote, as an instance of the class that its code names.

        A code that this build does not know gives an OmniJobsError whose message begins with the code.
        Details of other types than str and int are dropped. Raises KeyError without a code or a message.
        """
        code, message = str(data["code"]), str(data["message"])
        kind = _by_code().get(code)
        if kind is None:
            kind, message = OmniJobsError, f"{code}: {message}"
        return kind(message, **{name: data[name] for name in kind.details if isinstance(data.get(name), str | int)})


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


class MalformedRequest(InvalidInput):
    """This is not an HTTP/1.1 request."""

    code = "bad_request"
    http_status = 400


class HeadTooLarge(InvalidInput):
    """The request's head is larger than the server takes."""

    code = "head_too_large"
    http_status = 431


class UnknownHost(InvalidInput):
    """This server is not the host that the request names."""

    code = "unknown_host"
    http_status = 421


class ForeignOrigin(InvalidInput):
    """A page of another origin may not do this."""

    code = "foreign_origin"
    http_status = 403


class RangeNotSatisfiable(InvalidInput):
    """The range lies behind the artifact's end."""

    code = "range_not_satisfiable"
    http_status = 416

    details = ("field", "size")

    def __init__(self, message: str | None = None, *, size: int | None = None, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.size = size  # bytes of the whole


class ConfigError(InvalidInput):
    """The configuration is not valid."""

    code = "invalid_config"
    http_status = 500
    details = ("field", "stage", "file", "line")

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


class Gone(InvalidInput):
    """It is not kept any longer."""

    code = "gone"
    http_status = 410


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
    retry_class = "storage"
    http_status = 503


class StorageFull(StorageUnavailable):
    """The object store has no room left."""

    code = "storage_full"


class StageError(OmniJobsError):
    """The stage run failed."""

    code = "stage_failed"


class ModelError(StageError):
    """The model could not process this input."""

    code = "model_error"
    retry_class = "model_error"


class OutOfMemory(StageError):
    """The device has no memory left for this stage run."""

    code = "out_of_memory"
    retryable = True
    retry_class = "out_of_memory"


class TimeLimitExceeded(StageError):
    """The stage run took longer than the stage's time limit."""

    code = "time_limit"
    retry_class = "time_limit"


class WorkerLost(StageError):
    """The worker holding this stage run is gone."""

    code = "worker_lost"
    retryable = True
    retry_class = "worker_lost"


class EngineDead(StageError):
    """The engine under the runner is gone."""

    code = "engine_dead"
    retryable = True
    retry_class = "worker_lost"


class Quarantined(StageError):
    """The stage run was lost with its worker too often to be tried again."""

    code = "quarantined"


class Expired(OmniJobsError):
    """The job ran out of time."""

    code = "expired"


class DeadlineExceeded(Expired):
    """The job's deadline passed."""

    code = "deadline_exceeded"


class QueueTimeLimit(Expired):
    """The job waited too long for a stage."""

    code = "queue_time_limit"


class TooManyJobs(OmniJobsError):
    """As many jobs wait as may wait."""

    code = "too_many_jobs"
    retryable = True
    http_status = 429

    details = ("field", "retry_after_s")

    def __init__(self, message: str | None = None, *, retry_after_s: int = 1, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.retry_after_s = retry_after_s


class TooSlow(OmniJobsError):
    """The rest of the request did not come in time."""

    code = "too_slow"
    retryable = True
    http_status = 408


class ServerBusy(OmniJobsError):
    """The server holds as much as it may hold."""

    code = "server_busy"
    retryable = True
    http_status = 503


class DecodersUnavailable(OmniJobsError):
    """No process is there to decode media."""

    code = "decoders_unavailable"
    retryable = True
    retry_class = "storage"
    http_status = 503


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


class SlotTaken(OmniJobsError):
    """Another worker lives in this slot."""

    code = "slot_taken"


class Fenced(OmniJobsError):
    """This worker's lease is gone: another may hold its stage runs."""

    code = "fenced"
    retryable = True
    retry_class = "fenced"


@cache
def _by_code() -> dict[str, type[OmniJobsError]]:
    """Return every class of the tree by its code."""
    found: dict[str, type[OmniJobsError]] = {}
    waiting = [OmniJobsError]
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting += kind.__subclasses__()
    return found
