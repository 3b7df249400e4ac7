"""A plain Celery chain of two tasks that do nothing, on the threads pool, without a database or results."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import redis
from celery import Celery, chain

__all__ = ["app", "commands", "submit"]

BROKER = os.environ.get("PEER_BROKER", "redis://127.0.0.1:6379/0")
DONE = "celery-done"

app = Celery("celery_chain", broker=BROKER)
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    worker_prefetch_multiplier=64,
    broker_connection_retry_on_startup=True,
    task_routes={"peer.first": {"queue": "peer-first"}, "peer.second": {"queue": "peer-second"}},
)
_counter = redis.Redis.from_url(BROKER)


@app.task(name="peer.first")  # type: ignore[untyped-decorator]
def first(number: int) -> int:
    return number


@app.task(name="peer.second")  # type: ignore[untyped-decorator]
def second(number: int) -> None:
    _counter.incr(DONE)


def commands() -> Sequence[Sequence[str]]:
    """A worker per stage."""
    options = ["--pool", "threads", "--concurrency", "8", "--without-gossip", "--without-mingle", "--loglevel", "ERROR"]
    base = [sys.executable, "-m", "celery", "-A", "benchmarks.peers.celery_chain", "worker", *options]
    return [[*base, "-Q", queue, "-n", f"{queue}@peer"] for queue in ("peer-first", "peer-second")]


def submit(count: int) -> None:
    steps: Any = second.s()
    for number in range(count):
        chain(first.s(number), steps).apply_async()
