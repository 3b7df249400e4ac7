"""``EndedSpan``: what happened from then to then, in a trace; and ``open_spans``, which says where spans go."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from omni_jobs.errors import ConfigError
from omni_jobs.tracing.traceparent import trace_of

if TYPE_CHECKING:
    from omni_jobs.settings import Settings
    from omni_jobs.tracing.provider import SentSpans


Value = str | float | tuple[str, ...]
"""What an attribute may be; a float may be an int, and a bool."""


class EndedSpan(NamedTuple):
    """A span that is over. It is made once it has ended, of times that were taken, and no code runs within it.

    traceparent  its own name
    parent       that of the span around it; None: the trace begins with it
    began        seconds since 1970, as ``ended``
    labels       attributes that many spans share: they are encoded once
    links        the names of spans that it follows, of the same trace
    steps        spans within it that have nothing but a name and times, as began and ended
    error        what it ended in, and the last of its steps, as {code, message}; the message is clean
    """

    name: str
    traceparent: str
    parent: str | None
    began: float
    ended: float
    kind: Literal["server", "consumer", "internal"] = "internal"
    attributes: Mapping[str, Value] = {}
    labels: tuple[tuple[str, Value], ...] = ()
    links: Sequence[str] = ()
    steps: Sequence[tuple[str, float, float]] = ()
    error: Mapping[str, str] | None = None


def open_spans(settings: Settings, process: str) -> SentSpans | None:
    """Return where this process's spans go; None where tracing is off, and no file of ours imports OpenTelemetry.

    ``process`` is its name, such as ``api``. ``close`` it. Raises ConfigError where the packages are missing, or for an
    exporter that the variable ``OTEL_TRACES_EXPORTER`` names and that is not here.
    """
    if settings.tracing == "off":
        return None
    try:
        from omni_jobs.tracing.provider import SentSpans
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the package {error.name} is not installed here: pip install 'omni-jobs[otel]'", field="OMNI_JOBS_TRACING"
        ) from None
    return SentSpans(process)


def attempt_span(job: str, stage_run_id: int, attempt: int) -> str:
    """Return the name of an attempt's span, in the trace of its job's ``traceparent``.

    It is made of the attempt, so that every process knows the span of an earlier attempt that another one ran.
    """
    digest = hashlib.sha256(f"{trace_of(job)}/{stage_run_id}/{attempt}".encode()).hexdigest()
    return f"00-{trace_of(job)}-{digest[:16]}-{job[53:55]}"
