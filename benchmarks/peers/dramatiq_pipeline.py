"""A dramatiq pipeline of two actors that do nothing, without results."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

__all__ = ["commands", "submit"]

BROKER = os.environ.get("PEER_BROKER", "redis://127.0.0.1:6379/0")
DONE = "dramatiq-done"

dramatiq.set_broker(RedisBroker(url=BROKER))  # type: ignore[no-untyped-call]
_counter = redis.Redis.from_url(BROKER)


@dramatiq.actor(queue_name="peer-first")
def first(number: int) -> int:
    return number


@dramatiq.actor(queue_name="peer-second")
def second(number: int) -> None:
    _counter.incr(DONE)


def commands() -> Sequence[Sequence[str]]:
    """A worker process per stage, of eight threads."""
    base = [
        sys.executable,
        "-m",
        "dramatiq",
        "benchmarks.peers.dramatiq_pipeline",
        "--processes",
        "1",
        "--threads",
        "8",
    ]
    return [[*base, "--queues", queue] for queue in ("peer-first", "peer-second")]


def submit(count: int) -> None:
    for number in range(count):
        second_message: Any = second.message()  # type: ignore[call-arg]  # its number comes from the first
        pipeline: Any = dramatiq.pipeline([first.message(number), second_message])
        pipeline.run()
