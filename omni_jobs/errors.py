"""Every error that omni-jobs raises on purpose, in one tree.

    OmniJobsError
    ├── InvalidInput            the caller must change something
    │   ├── InvalidRequest          a request, its body for example; names the field
    │   ├── RequestTooLarge         the body or one of its media is over a limit
    │   ├── MediaUnavailable        a medium that the request names by URL is not there
    │   │   └── MediaHostUnavailable    retryable; its host does not send it, and may do better
    │   ├── UnsupportedContentType  the body is not JSON
    │   ├── MalformedRequest        the request is not HTTP as this server speaks it
    │   ├── HeadTooLarge            the request's head has too many bytes or headers
    │   ├── UnknownHost             the request names a host that this server is not
    │   ├── ForeignOrigin           a page of another origin sent the request
    │   ├── RangeNotSatisfiable     the part asked for lies behind the end
    │   ├── ConfigError             a stage config or a setting; names file, line and field
    │   │   ├── VersionChanged          the file has the version of another one that jobs or workers have
    │   │   └── PluginBroken            an installed plug-in that it names cannot be loaded or is not what it should be
    │   ├── NotFound                no such job, artifact or pipeline
    │   ├── MethodNotAllowed        there is such a path, and it does not know the method
    │   ├── MethodUnknown           no path of this server knows the method
    │   ├── Conflict                the thing exists, and its state forbids the request
    │   │   ├── StillCancelling         retryable; the job to delete has not stopped yet
    │   │   └── VersionDraining         the version of the pipeline takes no new jobs
    │   ├── IdempotencyKeyReused    the key of a submit names the job of another request
    │   └── Gone                    the thing existed, and its time to live is over
    ├── PayloadError            a payload that cannot be read; names the field
    │   ├── PayloadTooLarge         it is larger than the limit
    │   └── PayloadCorrupt          its bytes are not what its header says
    ├── StorageError            the object store; names the key
    │   ├── ObjectMissing           there is no such object
    │   ├── ObjectCorrupt           the digest or the size is wrong
    │   └── StorageUnavailable      retryable
    │       └── StorageFull             no room is left, and room may come back
    ├── StageError              a stage run failed; names the stage
    │   ├── ModelError              the model or its engine refused or broke on this input
    │   ├── OutOfMemory             retryable; the device has too little memory
    │   ├── TimeLimitExceeded       it took longer than the stage's time limit
    │   ├── WorkerLost              retryable; the worker's lease ran out while it held the stage run
    │   ├── EngineDead              retryable; the engine under the runner is gone
    │   ├── RemoteUnavailable       retryable; the server of a remote stage is away, too busy, or loses its answers
    │   └── Quarantined             the stage run was lost with its worker too often to be tried again
    ├── Expired                 a job ran out of time; says whether it ever started
    │   ├── DeadlineExceeded        its own deadline passed
    │   └── QueueTimeLimit          it waited for a stage longer than the stage allows
    ├── JobCancelled            the job for which a request waited was cancelled
    ├── StillRunning            the job for which a request waited goes on
    ├── TextChanged             a stream has told a text, and another attempt wrote another one
    ├── Unauthenticated         the request has no API key that counts
    ├── MissingScope            the request's API key may not do this; names the scope
    ├── LimitReached            retryable; a limit on jobs or requests; says when to try again
    │   ├── TooManyJobs             as many jobs wait as may wait
    │   ├── TooManyRunningJobs      as many jobs of the tenant run as may run
    │   ├── TooManyRequests         the tenant has sent as many requests in a minute as it may
    │   ├── TooMuchMedia            the media of the tenant's unfinished jobs have as many bytes as they may
    │   └── TooMuchStored           the tenant keeps as many bytes stored as it may
    ├── TooSlow                 retryable; the client did not send the rest of its request in time
    ├── ServerBusy              retryable; as many connections or bytes of bodies are held as may be
    ├── DecodersUnavailable     retryable; no process can decode media now: all are busy, or none starts
    ├── ModelMissing            this server has no checkpoint for the pipeline
    ├── DatabaseUnavailable     retryable; SQL does not answer, or has another schema
    ├── BrokerUnavailable       retryable; workers find the work in SQL by polling
    ├── ServerUnavailable       retryable; the client got no answer from the API
    ├── StackError              the embedded stack did not start, or cannot go on
    ├── SlotTaken               another living worker has the slot that this one was to take
    └── Fenced                  this worker's lease is gone, so it must stop writing

Each error has a ``code`` (stable, for machines), ``retryable`` (whether another attempt can help), an HTTP status, and
details, the field or the stage that it concerns for example. A class's docstring is its default message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

RetryClass = Literal["worker_lost", "fenced", "out_of_memory", "storage", "remote", "model_error", "time_limit"]
"""The kind of a failure, by which a stage's ``retries`` bound the attempts. Bad input has none."""


class OmniJobsError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retryable: bool = False  # of the class, but for an error of a later build
    retry_class: ClassVar[RetryClass | None] = None  # the stage's ``retries`` bound its failures of this class
    details: ClassVar[tuple[str, ...]] = ("field", "stage", "key")  # names of its keyword arguments and attributes
    retry_after_s: float | None = None  # seconds after which a server asked for another try; None: it did not

    def __init_subclass__(
        cls,
        *,
        code: str,
        http_status: int | None = None,
        retryable: bool | None = None,
        retry_class: RetryClass | None = None,
    ) -> None:
        """Give a class its code. Its other attributes are those of its base class unless they are named."""
        super().__init_subclass__()
        cls.code = code
        _BY_CODE[code] = cls
        cls.http_status = cls.http_status if http_status is None else http_status
        cls.retryable = cls.retryable if retryable is None else retryable
        cls.retry_class = retry_class or cls.retry_class

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str | None = None,
        stage: str | None = None,
        key: str | None = None,
        because: str | None = None,
    ) -> None:
        """``because``: what only operators may read, such as a driver's words, which name hosts and ports."""
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        self.field = field
        self.stage = stage
        self.key = key
        self.because = because
        super().__init__(self.message)

    @property
    def whole_message(self) -> str:
        """The message with what only operators may read."""
        return self.message if self.because is None else f"{self.message}: {self.because}"

    def __str__(self) -> str:
        about = [
            f"{name} {value}"
            for name, value in (("stage", self.stage), ("key", self.key), ("field", self.field))
            if value is not None
        ]
        return f"{self.whole_message} ({', '.join(about)})" if about else self.whole_message

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

        A code that this build does not know gives an OmniJobsError whose message begins with the code, and which is
        retryable if ``data`` says so. Details of other types than str and int are dropped. Raises KeyError without a
        code or a message.
        """
        code, message = str(data["code"]), str(data["message"])
        kind = _BY_CODE.get(code)
        details = {
            name: data[name] for name in (kind or OmniJobsError).details if isinstance(data.get(name), str | int)
        }
        if kind is not None:
            return kind(message, **details)
        error = OmniJobsError(f"{code}: {message}", **details)
        error.retryable = data.get("retryable") is True
        return error


_BY_CODE: dict[str, type[OmniJobsError]] = {OmniJobsError.code: OmniJobsError}  # the classes below enter themselves


class InvalidInput(OmniJobsError, code="invalid_input", http_status=422):
    """The input is not valid."""


class InvalidRequest(InvalidInput, code="invalid_request"):
    """The request is not valid."""


class RequestTooLarge(InvalidInput, code="request_too_large", http_status=413):
    """The request is larger than the server takes."""


class MediaUnavailable(InvalidInput, code="media_unavailable"):
    """A medium is not there that the request names by URL."""


class MediaHostUnavailable(MediaUnavailable, code="media_host_unavailable", retryable=True):
    """The host of a medium that the request names by URL does not send it."""


class UnsupportedContentType(InvalidInput, code="unsupported_content_type", http_status=415):
    """The body must be JSON in UTF-8: send Content-Type: application/json."""


class MalformedRequest(InvalidInput, code="bad_request", http_status=400):
    """This is not an HTTP/1.1 request."""


class HeadTooLarge(InvalidInput, code="head_too_large", http_status=431):
    """The request's head is larger than the server takes."""


class UnknownHost(InvalidInput, code="unknown_host", http_status=421):
    """This server is not the host that the request names."""


class ForeignOrigin(InvalidInput, code="foreign_origin", http_status=403):
    """A page of another origin may not do this."""


class RangeNotSatisfiable(InvalidInput, code="range_not_satisfiable", http_status=416):
    """The range lies behind the artifact's end."""

    details = ("field", "size")

    def __init__(self, message: str | None = None, *, size: int | None = None, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.size = size  # bytes of the whole


class ConfigError(InvalidInput, code="invalid_config", http_status=500):
    """The configuration is not valid.

    ``more`` has the other mistakes that were found in the same file, in the order of its checks.
    """

    more: tuple[ConfigError, ...] = ()
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


class PluginBroken(ConfigError, code="plugin_broken", http_status=503):
    """A plug-in is broken."""


class VersionChanged(ConfigError, code="version_changed", http_status=503):
    """This version of the pipeline was another file: raise its version."""


class NotFound(InvalidInput, code="not_found", http_status=404):
    """There is no such thing."""


class MethodNotAllowed(InvalidInput, code="method_not_allowed", http_status=405):
    """This path does not know the method."""


class MethodUnknown(InvalidInput, code="method_unknown", http_status=501):
    """This server does not know the request's method."""


class Conflict(InvalidInput, code="conflict", http_status=409):
    """The state of the thing forbids this."""


class StillCancelling(Conflict, code="still_cancelling", retryable=True):
    """The job is being cancelled: delete it again in a moment."""


class VersionDraining(Conflict, code="version_draining"):
    """This version of the pipeline is draining: it takes no new jobs."""


class IdempotencyKeyReused(InvalidInput, code="idempotency_key_reused", http_status=422):
    """This idempotency key was used for another request."""


class Gone(InvalidInput, code="gone", http_status=410):
    """It is not kept any longer."""


class PayloadError(OmniJobsError, code="payload_invalid"):
    """The payload is not valid."""


class PayloadTooLarge(PayloadError, code="payload_too_large"):
    """The payload is larger than the limit."""


class PayloadCorrupt(PayloadError, code="payload_corrupt"):
    """The payload's bytes are not what their header says."""


class StorageError(OmniJobsError, code="storage_error"):
    """The object store refused."""


class ObjectMissing(StorageError, code="object_missing", http_status=404):
    """The object is not there."""


class ObjectCorrupt(StorageError, code="object_corrupt"):
    """The object's bytes do not match its digest."""


class StorageUnavailable(
    StorageError, code="storage_unavailable", http_status=503, retryable=True, retry_class="storage"
):
    """The object store does not answer."""


class StorageFull(StorageUnavailable, code="storage_full"):
    """The object store has no room left."""


class StageError(OmniJobsError, code="stage_failed"):
    """The stage run failed."""


class ModelError(StageError, code="model_error", retry_class="model_error"):
    """The model could not process this input."""


class OutOfMemory(StageError, code="out_of_memory", retryable=True, retry_class="out_of_memory"):
    """The device or the host has no memory left for this stage run."""


class TimeLimitExceeded(StageError, code="time_limit", retry_class="time_limit"):
    """The stage run took longer than the stage's time limit."""


class WorkerLost(StageError, code="worker_lost", retryable=True, retry_class="worker_lost"):
    """The worker holding this stage run is gone."""


class EngineDead(StageError, code="engine_dead", retryable=True, retry_class="worker_lost"):
    """The engine under the runner is gone."""


class RemoteUnavailable(StageError, code="remote_unavailable", http_status=503, retryable=True, retry_class="remote"):
    """The remote server does not answer."""


class Quarantined(StageError, code="quarantined"):
    """The stage run was lost with its worker too often to be tried again."""


class Expired(OmniJobsError, code="expired", http_status=504):
    """The job ran out of time."""


class DeadlineExceeded(Expired, code="deadline_exceeded"):
    """The job's deadline passed."""


class QueueTimeLimit(Expired, code="queue_time_limit"):
    """The job expired, because it waited too long for a stage."""


class JobCancelled(OmniJobsError, code="job_cancelled", http_status=409):
    """The job was cancelled."""


class StillRunning(OmniJobsError, code="still_running", http_status=504):
    """The job has not ended within the time for which a request waits; it goes on."""


class TextChanged(OmniJobsError, code="text_changed"):
    """An attempt was lost, and the next one writes another text than the stream has told; the job goes on."""


class Unauthenticated(OmniJobsError, code="unauthenticated", http_status=401):
    """This needs an API key: send Authorization: Bearer omni_…"""


class MissingScope(OmniJobsError, code="missing_scope", http_status=403):
    """The API key may not do this."""


class LimitReached(OmniJobsError, code="limit_reached", http_status=429, retryable=True):
    """A limit is reached."""

    details = ("field", "retry_after_s")

    def __init__(self, message: str | None = None, *, retry_after_s: int = 1, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.retry_after_s = retry_after_s


class TooManyJobs(LimitReached, code="too_many_jobs"):
    """As many jobs wait as may wait."""


class TooManyRunningJobs(LimitReached, code="too_many_running_jobs"):
    """As many jobs of this tenant run as may run."""


class TooManyRequests(LimitReached, code="too_many_requests"):
    """This tenant has sent as many requests as it may in a minute."""


class TooMuchMedia(LimitReached, code="too_much_media"):
    """The media of this tenant's unfinished jobs have as many bytes as they may."""


class TooMuchStored(LimitReached, code="too_much_stored"):
    """This tenant keeps as many bytes stored as it may."""


class TooSlow(OmniJobsError, code="too_slow", http_status=408, retryable=True):
    """The rest of the request did not come in time."""


class ServerBusy(OmniJobsError, code="server_busy", http_status=503, retryable=True):
    """The server holds as much as it may hold."""


class DecodersUnavailable(
    OmniJobsError, code="decoders_unavailable", http_status=503, retryable=True, retry_class="storage"
):
    """No process is there to decode media."""


class ModelMissing(OmniJobsError, code="model_missing", http_status=503):
    """This server has no checkpoint for the pipeline."""


class DatabaseUnavailable(OmniJobsError, code="database_unavailable", http_status=503, retryable=True):
    """The database does not answer.

    ``lasts``: it will not until somebody mends its file or names another, so a command does not tell of a trouble that
    passes. A server tries again all the same, because the file may be mended while it runs.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        lasts: bool = False,
        field: str | None = None,
        stage: str | None = None,
        key: str | None = None,
        because: str | None = None,
    ) -> None:
        super().__init__(message, field=field, stage=stage, key=key, because=because)
        self.lasts = lasts


class BrokerUnavailable(OmniJobsError, code="broker_unavailable", http_status=503, retryable=True):
    """The broker does not answer."""


class ServerUnavailable(OmniJobsError, code="server_unavailable", http_status=503, retryable=True):
    """The API server does not answer."""


class StackError(OmniJobsError, code="stack_failed"):
    """The embedded stack did not start."""


class SlotTaken(OmniJobsError, code="slot_taken"):
    """Another worker lives in this slot."""


class Fenced(OmniJobsError, code="fenced", retryable=True, retry_class="fenced"):
    """This worker's lease is gone: another may hold its stage runs."""
