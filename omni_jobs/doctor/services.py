"""Database, broker and object store: whether they answer, take writes, and agree with this host on the time."""

import time
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version

from sqlalchemy import select

from omni_jobs.broker.broker import Broker
from omni_jobs.database.clock import now
from omni_jobs.database.database import Database
from omni_jobs.doctor.finding import Finding
from omni_jobs.jobs import Jobs
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.settings import Settings
from omni_jobs.storage import open_store

_CLOCKS_APART_S = 2.0  # leases and deadlines are by the database's clock, but log lines and spans by the host's
_SHOWN = 5  # workers of other versions
_SLOW_S = 0.1  # a transaction of a worker has some five round trips
_NEAR = "put this host nearer to it, because each stage run waits for several answers"


def database(settings: Settings) -> Iterator[Finding]:
    """Look also at its clock, and at the versions of the workers in it.

    Raises DatabaseUnavailable, also for the schema of another build on which this one does not work.
    """
    with closing(Database(settings.resolved_database_url)) as opened:
        opened.check()
        opened.check_writes()
        is_ahead = opened.is_ahead()
        began = time.time()
        theirs = opened.read(lambda tx: tx.execute(select(now())).scalar_one())
        took_s = time.time() - began
        apart_s = theirs - (began + took_s / 2)
        workers = Jobs(opened).workers()
    figures = {"answer_s": round(took_s, 4), "clock_ahead_s": round(apart_s, 3)}
    kind = settings.resolved_database_url.partition(":")[0].partition("+")[0]
    whose = "a newer build's schema, on which this one works," if is_ahead else "this build's schema"
    yield _of_service("database", f"{kind} has {whose} and takes writes", took_s, figures)
    if abs(apart_s) > _CLOCKS_APART_S + took_s:
        yield Finding(
            about="database",
            state="warning",
            message=f"its clock is {abs(apart_s):.1f} s {'ahead of' if apart_s > 0 else 'behind'} this host's",
            remedy="let both hosts follow a time server (chrony, systemd-timesyncd)",
            figures=figures,
        )
    yield _versions({worker.id: worker.info.versions.get("omni-jobs") for worker in workers})


def broker(settings: Settings) -> Iterator[Finding]:
    """Raises BrokerUnavailable."""
    with closing(Broker(settings, Pipelines({}))) as opened:
        opened.check()
        began = time.monotonic()
        opened.check()
        took_s = time.monotonic() - began
        policy = opened.eviction_policy()
    yield _of_service("broker", "takes doorbells", took_s, {"answer_s": round(took_s, 4)})
    if policy not in (None, "noeviction"):
        yield Finding(
            about="broker",
            state="warning",
            message=f"when its memory is full it deletes keys (maxmemory-policy {policy})",
            remedy="set maxmemory-policy noeviction: a doorbell that is deleted costs its job a poll's seconds",
        )


def storage(settings: Settings) -> Iterator[Finding]:
    """Raises StorageUnavailable, also StorageFull."""
    store = open_store(settings)
    store.check_writes()
    began = time.monotonic()
    store.check()
    took_s = time.monotonic() - began
    message = f"{settings.resolved_storage_url} takes objects"
    yield _of_service("storage", message, took_s, {"answer_s": round(took_s, 4)})


def _versions(theirs: dict[str, str | None]) -> Finding:
    """Compare this host's version of omni-jobs with those of the workers, by their ids."""
    ours = version("omni-jobs")
    others = {worker: each for worker, each in theirs.items() if each not in (ours, None)}
    figures = {"omni-jobs": ours, "workers": theirs}
    if not others:
        count = "each worker" if theirs else "this host; no worker serves"
        return Finding(about="versions", state="ok", message=f"omni-jobs {ours} at {count}", figures=figures)
    shown = ", ".join(f"{worker} has {each}" for worker, each in sorted(others.items())[:_SHOWN])
    return Finding(
        about="versions",
        state="warning",
        message=f"this host has omni-jobs {ours}, and {shown}",
        remedy="bring all hosts to one version: docs/operations/upgrade.md",
        figures=figures,
    )


def _of_service(about: str, message: str, took_s: float, figures: dict[str, float]) -> Finding:
    whole = f"{message}; an answer takes {took_s * 1000:.1f} ms"
    if took_s > _SLOW_S:
        return Finding(about=about, state="warning", message=whole, remedy=_NEAR, figures=figures)
    return Finding(about=about, state="ok", message=whole, figures=figures)
