"""``HookStep``: a bootstep of Celery's consumer, which makes the consumer's channel ring the pool's doorbell."""

import logging
from typing import Any

from celery import bootsteps
from celery.worker.consumer.control import Control
from celery.worker.consumer.tasks import Tasks

from omni_jobs.broker.doorbell import doorbell
from workers.consumer import kombu_hooks

logger = logging.getLogger(__name__)


class HookStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Hooks the channel of Celery's consumer to the pool, after each connect, because each brings a new channel."""

    requires = (Tasks, Control)

    def start(self, c: Any) -> None:
        """Install the hooks. ``c`` is Celery's consumer, its ``pool`` the worker's ``StagePool``."""
        channel = c.task_consumer.channel

        def read(reply: Any, **options: Any) -> None:
            """Ring for a BRPOP's reply, a key and a message; do nothing for None. redis-py calls this."""
            if not reply:
                return
            if reply[1] != doorbell(c.pool.queue):
                logger.warning("%s held another message than a doorbell: dropped", c.pool.queue)
            c.pool.ring()

        kombu_hooks.take_pops(channel, read)
        kombu_hooks.gate_pops(channel, c.pool.has_room)
        kombu_hooks.guard_control(c.connection)
