"""``StagePool``: a Celery pool that is one asyncio loop with one stage's engine in it.

    CELERY_CUSTOM_WORKER_POOL=workers.consumer.pool:StagePool celery -A workers.app worker -P custom -Q echo.first -n …

Celery's main thread keeps the broker's connection and pops doorbells while the executor has room. Everything of the
stage happens on the pool's loop thread (``workers.consumer.stage_host``). The outcome of a stage run goes to SQL and
not to the broker, so the loop sends Celery nothing but wake-ups. Callbacks, errbacks, chains, chords, time limits and
revokes in messages have no effect: the stage config says how long a stage run may take, and the API's ``cancel`` stops
it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import platform
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop
from celery import signals
from celery.concurrency.base import BasePool
from celery.exceptions import WorkerShutdown

from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.cores import use_batch_policy
from omni_jobs.errors import BrokerUnavailable, ConfigError, OmniJobsError
from omni_jobs.priority import Priority, queue_of
from workers.consumer import kombu_hooks
from workers.consumer.command_line import stage_of_queues
from workers.consumer.event_outbox import EventOutbox
from workers.consumer.high_doorbells import HighDoorbells
from workers.consumer.load_turns import turn_to_load
from workers.consumer.process_end import ProcessEnd, end_process
from workers.consumer.stage_host import StageHost
from workers.consumer.stall_watch import StallWatch
from workers.execution.slots import Slots

if TYPE_CHECKING:
    from workers.execution.executor import Executor

logger = logging.getLogger(__name__)

T = TypeVar("T")

EX_FAILURE = 1
_BROKER_PAUSE_S = 1.0
_STOP_CHECK_S = 0.2  # how often a starting worker checks whether it is asked to stop
_LOAD_CLOSE_S = 10.0  # for a stop before the worker serves: there is nothing to drain
_STALLED_CLOSE_S = 3.0  # for a stop because the event loop stands still: nothing on it can be closed
_CLOSE_S = 45.0  # for a stop, its drain not counted; after that the process ends whatever hangs in it


class StagePool(BasePool):  # type: ignore[misc]  # celery has no types
    """One stage behind the methods that Celery calls on a pool, and those that ``HookStep`` calls with doorbells.

    All are called on Celery's main thread: ``on_start``, then the methods for doorbells, then ``on_close`` and
    ``on_stop``.
    """

    app: OmniCelery

    def __init__(self, limit: int | None = None, *args: Any, **options: Any) -> None:
        """Prepare the event loop. ``limit`` is Celery's ``-c``: it bounds the slots."""
        super().__init__(limit, *args, **options)
        _, self._node = options.get("initargs", (None, platform.node()))
        self.queue = ""  # the stage's, once it is known
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage", daemon=True)
        self._host: StageHost | None = None
        self.executor: Executor | None = None  # once the worker serves
        self.events = EventOutbox() if self.app.settings.task_events == "asked" else None
        self._stall_watch: StallWatch | None = None  # from before the first claim
        self._high_doorbells: HighDoorbells | None = None  # once the worker serves, if it keeps slots for high jobs
        self._hub: Any = None  # Celery's event loop
        self._popping_stopped = False
        self._broken: str | None = None  # why this worker ends itself
        self._process_end = ProcessEnd(lambda: EX_FAILURE if self._broken else 0)
        self._signals = 0
        self._hurry = asyncio.Event()
        self._may_drain = False
        self._ended = False
        self._opening: concurrent.futures.Future[Any] | None = None  # the start
        signals.worker_shutting_down.connect(self._on_signal, weak=False)

    # Start.

    def on_start(self) -> None:
        """Take the slot, load the engine and serve; Celery starts its consumer after this.

        Raises WorkerShutdown when this worker cannot start, or was asked to stop meanwhile.
        """
        use_batch_policy()
        signals.worker_shutdown.connect(end_process, weak=False)  # the last step of Celery's stop
        self._thread.start()
        try:
            self._run_on_loop(self._open())
        except OmniJobsError as error:
            self._end(drain_s=0.0)
            for each in (error, *(error.more if isinstance(error, ConfigError) else ())):
                logger.critical("this worker cannot start: %s", each)
            raise WorkerShutdown(EX_FAILURE) from error
        except BaseException:
            self._end(drain_s=0.0)
            raise

    async def _open(self) -> None:
        pipeline, stage = stage_of_queues(self.app.amqp.queues.consume_from, self.app.pipelines)
        self.queue = pipeline.queue(stage)
        config = pipeline.stage(stage)
        number = min(config.slots, self.limit) if self.limit else config.slots
        slots = Slots(number, config.slots_for_high)
        host = self._host = StageHost(
            self.app,
            pipeline,
            stage,
            slot=self._node,
            slots=slots,
            keep_trying=lambda: not kombu_hooks.stop_asked(),
            on_room=self._on_room,
            on_broken=self._on_broken,
            events=self.events,
        )
        await host.take_slot()
        with self._load_limit():
            cards = host.prepare()
        async with turn_to_load(self.app.settings.load_locks_dir, cards):
            with self._load_limit():
                await host.load()
        # Before ``serve``, because the executor claims at once, and a stage run may block the event loop.
        stall_after_s = self.app.settings.stall_after_s
        self._stall_watch = StallWatch(
            stall_after_s,
            self._loop,
            on_stall=self._on_stall,
            on_check=lambda: self._process_end.unless_again_within(2 * stall_after_s),
        )
        self._stall_watch.start()
        self.executor = await host.serve()
        await self._wait_for_list()
        if config.slots_for_high:
            self._high_doorbells = HighDoorbells(
                self.app.broker,
                queue_of(self.queue, Priority.HIGH),
                has_room=lambda: self.executor is not None and self.executor.slots.for_high > 0,
                ring=lambda: self.ring(Priority.HIGH),
            )
            self._high_doorbells.start()
        logger.info("%s serves %s with %d slots", self._node, self.queue, number)

    @contextmanager
    def _load_limit(self) -> Iterator[None]:
        """End the process when what runs inside takes longer than the limit of a load."""
        # The timer has a thread of its own, because a library's call may hang, and the event loop with it.
        timer = _start_timer(self.app.settings.load_limit_s, self._on_load_limit)
        try:
            yield
        finally:
            timer.cancel()

    def _on_load_limit(self) -> None:
        self._process_end.within(_LOAD_CLOSE_S)
        limit_s = self.app.settings.load_limit_s
        self._on_broken(f"the model is not loaded after {limit_s:g} s, OMNI_JOBS_LOAD_LIMIT_S")

    async def _wait_for_list(self) -> None:
        """Wait while the queue's key in the broker is no list, because Celery's consumer would end the worker then."""
        while True:
            try:
                await asyncio.to_thread(self.app.broker.depth, self.queue)
                return
            except BrokerUnavailable as error:
                if "WRONGTYPE" not in str(error):
                    return  # Celery's consumer waits for a broker by itself
                logger.error("waiting: the key of %s in the broker is no list: %s", self.queue, error)
            await asyncio.sleep(_BROKER_PAUSE_S)

    def _run_on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Block Celery's main thread until the loop has done ``work``; cancel it when the worker is asked to stop."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._opening = future
        while True:
            try:
                return future.result(_STOP_CHECK_S)
            except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
                if kombu_hooks.stop_asked():
                    future.cancel()
                    raise WorkerShutdown(EX_FAILURE if self._broken else 0) from None
                if future.done():
                    raise

    # Doorbells.

    def register_with_event_loop(self, hub: Any) -> None:
        """Keep Celery's event loop, its hub, to wake it later."""
        self._hub = hub

    def has_room(self) -> bool:
        """Return whether Celery may pop another doorbell: the executor has room. Celery's hub asks on every turn."""
        self._popping_stopped = self.room() <= 0
        # A slot that became free before the line above woke nobody, so ask again.
        return not self._popping_stopped or self.room() > 0

    def room(self) -> int:
        """Return how many more stage runs the executor could claim now, 0 before there is one."""
        return 0 if self.executor is None else self.executor.slots.for_any

    def ring(self, priority: Priority = Priority.NORMAL) -> None:
        """Make the executor claim, because a doorbell says that stage runs may wait; HIGH: those of high jobs."""
        if self.executor is not None:
            self.executor.ring(priority)

    def on_apply(self, target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> None:
        """Log a task and drop it, because doorbells come through :meth:`ring` and this pool runs nothing else."""
        logger.error("a task reached the pool and is dropped")

    def _on_room(self) -> None:
        if self._high_doorbells is not None:
            self._high_doorbells.listen()
        if self._popping_stopped:
            self._popping_stopped = False
            self._wake_celery()

    def _wake_celery(self) -> None:
        """Make Celery's hub turn: on each turn it asks for room, and whether to stop. For any thread."""
        if self._hub is not None:
            self._hub.call_soon(lambda: None)

    # An end that nobody asked for.

    def _on_broken(self, reason: str) -> None:
        """End this worker because it cannot go on; for any thread."""
        if self._broken is None:
            self._broken = reason
            logger.critical("this worker stops, to be started anew: %s", reason)
            kombu_hooks.ask_to_stop(EX_FAILURE)
            self._process_end.within(_CLOSE_S)
            self._wake_celery()

    def _on_stall(self, reason: str, task: str | None) -> None:
        """End this worker, whose event loop stands still in a task of this name. The stall watch's thread calls it."""
        self._on_broken(reason)
        if self._host is not None:
            self._host.give_up(reason, task)
        self._process_end.within(_STALLED_CLOSE_S)

    # An end that was asked for.

    def _on_signal(self, **_: Any) -> None:
        """Count the signals that ask for a stop, in their handler, because Celery ignores a second SIGTERM."""
        self._process_end.within(self._close_s + self.app.conf.worker_soft_shutdown_timeout)
        self._signals += 1
        if self._signals > 1:
            self._loop.call_soon_threadsafe(self._hurry.set)

    def on_close(self) -> None:
        """Allow ``on_stop`` to drain. Celery calls this before it on SIGTERM, and only after it on SIGQUIT."""
        self._may_drain = True

    def on_stop(self) -> None:
        """Close the stage: drain after SIGTERM, otherwise release what runs. A second call ends the first's drain."""
        if self._ended:
            self._loop.call_soon_threadsafe(self._hurry.set)
        elif self._may_drain and self._broken is None:
            self._end(drain_s=self.app.conf.worker_soft_shutdown_timeout)
        else:
            self._end(drain_s=0.0)

    def on_terminate(self) -> None:
        """Close the stage without a drain."""
        self._may_drain = False
        self.on_stop()

    @property
    def _close_s(self) -> float:
        """How long a stop may take, its drain not counted."""
        return _LOAD_CLOSE_S if self.executor is None else _CLOSE_S

    def _end(self, drain_s: float) -> None:
        """Close the stage, once. Celery's handler of SIGQUIT calls for it in the middle of a start."""
        if self._ended:
            return
        self._ended = True
        if self._opening is not None:
            self._opening.cancel()
        self._process_end.within(self._close_s + drain_s)
        if self._stall_watch is not None:
            self._stall_watch.close()
        if self._high_doorbells is not None:
            self._high_doorbells.close()
        try:
            if self._host is not None:
                asyncio.run_coroutine_threadsafe(self._host.close(drain_s, self._hurry), self._loop).result()
            if self.events is not None:
                self.events.flush()  # of what has ended since Celery's consumer stopped
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)

    # What ``celery inspect`` shows, beside workers.consumer.remote_control.

    @property
    def num_processes(self) -> int:
        """The worker's slots, or 0 before it serves, under the name by which Celery asks a pool for them."""
        return 0 if self.executor is None else self.executor.slots.number

    def counts(self) -> dict[str, int]:
        """Return how many stage runs are in flight, and how many have ended here, by Celery's names for them."""
        if self.executor is None:
            return {"active": 0, "processed": 0}
        return {"active": self.executor.in_flight, "processed": self.executor.ended}

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        if self._host is not None and self.executor is not None:
            info |= {
                "worker": self._host.worker.worker_id,
                "slots": self.executor.slots.number,
                "stage-runs-in-flight": self.executor.in_flight,
            }
        return info


def _start_timer(seconds: float, function: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer
