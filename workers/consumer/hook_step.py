"""``HookStep``: a bootstep of Celery's consumer, which makes the consumer's channel hand hints to the pool."""

from typing import Any

from celery import bootsteps
from celery.worker.consumer.control import Control
from celery.worker.consumer.tasks import Tasks

from workers.consumer import kombu_hooks
from workers.consumer.pop_reader import PopReader


class HookStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Hooks the channel of Celery's consumer to the pool, after each connect, because each brings a new channel."""

    requires = (Tasks, Control)

    def start(self, c: Any) -> None:
        """Install the hooks. ``c`` is Celery's consumer, its ``pool`` the worker's ``StagePool``."""
        channel = c.task_consumer.channel
        kombu_hooks.take_pops(channel, PopReader(channel, c.pool).read)
        kombu_hooks.gate_pops(channel, c.pool.has_room)
        kombu_hooks.guard_control(c.connection)
