"""``HookStep``: a bootstep of Celery's consumer, which hooks the pool to each of its connections.

The channel rings the pool's doorbell, and the dispatcher of events sends those of stage runs.
"""

import logging
from typing import Any

from celery import bootsteps
from celery.worker.consumer.control import Control
from celery.worker.consumer.events import Events
from celery.worker.consumer.tasks import Tasks

from omni_jobs.broker.doorbell import doorbell
from workers.consumer import kombu_hooks
from workers.consumer.event_outbox import FLUSH_EVERY_S

logger = logging.getLogger(__name__)

_MOST_LEFT = 5_000  # messages of events that wait in the broker for a monitor
_CHECK_EVERY_S = 10.0  # for monitors that are gone


class HookStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery has no types
    """Hooks the channel of Celery's consumer to the pool, after each connect, because each brings a new channel."""

    requires = (Tasks, Control, Events)

    def __init__(self, c: Any, **options: Any) -> None:
        """Repeat nothing yet. ``c`` is Celery's consumer."""
        super().__init__(c, **options)
        self._repeated: list[Any] = []  # calls of the consumer's timer

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
        self._hook_events(c)

    def _hook_events(self, c: Any) -> None:
        dispatcher, events = c.event_dispatcher, c.pool.events
        kombu_hooks.tell_true_counts(dispatcher, c.pool.counts)
        self._stop_repeating(c)
        _drop_left_events(dispatcher)
        self._repeated.append(c.timer.call_repeatedly(_CHECK_EVERY_S, _drop_left_events, (dispatcher,)))
        if events is None:
            return
        events.attach(dispatcher)
        if "task" in dispatcher.groups and not dispatcher.enabled:  # asked for before this connection
            dispatcher.enable()
        self._repeated.append(c.timer.call_repeatedly(FLUSH_EVERY_S, events.flush))

    def stop(self, c: Any) -> None:
        """Publish the last events, and flush no more."""
        if c.pool.events is not None:
            c.pool.events.flush()
        self._stop_repeating(c)

    def _stop_repeating(self, c: Any) -> None:
        for call in self._repeated:
            c.timer.cancel(call)
        self._repeated.clear()


def _drop_left_events(dispatcher: Any) -> None:
    try:
        kombu_hooks.drop_left_events(dispatcher, _MOST_LEFT)
    except kombu_hooks.connection_errors(dispatcher) as error:
        logger.info("what waits for monitors is not looked at: %s", error)
