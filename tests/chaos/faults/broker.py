"""The faults of the broker, Valkey."""

import shutil
import signal
from contextlib import suppress

import redis

from tests.chaos.faults.fault import Chaos, fault


@fault("valkey")
def kill_valkey(chaos: Chaos) -> None:
    """kill -9 of Valkey; its append-only file is there."""
    chaos.victim.signal(signal.SIGKILL)
    chaos.wait(1)


@fault("valkey")
def wipe_valkey(chaos: Chaos) -> None:
    """kill -9 of Valkey, as if it had no append-only file: it comes back empty."""
    with chaos.held(chaos.victim):
        chaos.victim.signal(signal.SIGKILL)
        chaos.victim.wait_gone(5)
        for path in chaos.stack.valkey_directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        chaos.wait(0.1, 2)


@fault("valkey")
def flush_valkey(chaos: Chaos) -> None:
    """FLUSHALL: every doorbell that waits is gone."""
    with suppress(redis.RedisError), chaos.stack.broker() as broker:
        broker.flushall()


@fault("valkey")
def hang_valkey(chaos: Chaos) -> None:
    """SIGSTOP, then SIGCONT, of Valkey: connections stay and nothing answers."""
    with chaos.stopped(chaos.victim):
        chaos.wait(2, 8)


@fault("valkey")
def fill_valkey(chaos: Chaos) -> None:
    """Valkey is full: under ``noeviction`` it refuses every write."""
    with suppress(redis.RedisError), chaos.stack.broker() as broker:
        broker.config_set("maxmemory", "1")
        try:
            chaos.wait(2, 6)
        finally:
            broker.config_set("maxmemory", "0")
