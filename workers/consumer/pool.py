"""``StagePool``: a Celery pool that is one asyncio loop with one stage's engine in it.

    CELERY_CUSTOM_WORKER_POOL=workers.consumer.pool:StagePool celery -A workers.app worker -P custom -Q echo.first -n …

Celery's main thread keeps the broker's connection and pops hints while the executor has
room; everything of the stage happens on the pool's loop thread. Nothing travels back but
a wake-up: the outcome of a stage run goes to SQL, not to the broker. Callbacks, errbacks,
chains, chords, time limits and revokes in messages mean nothing here: the stage config
says how long a stage run may take, ``cancel`` of the API stops it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import math
import os
import platform
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop
from celery import bootsteps, signals
from celery.concurrency.base import BasePool
from celery.exceptions import WorkerShutdown
from celery.worker.consumer.control import Control
from celery.worker.consumer.tasks import Tasks

from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.broker.hints import HintPublisher
from omni_jobs.broker.relay import Relay
from omni_jobs.database.database import Database
from omni_jobs.errors import BrokerUnavailable, ConfigError, DatabaseUnavailable, Fenced, OmniJobsError
from omni_jobs.jobs import Jobs, NewWorker, Retention
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.stack.cores import use_batch_policy
from workers.consumer import kombu_hooks
from workers.consumer.liveness import Liveness
from workers.execution import incarnation
from workers.execution.ledger import Ledger

if TYPE_CHECKING:
    from workers.execution.executor import Executor
    from workers.stages.stage import StageLLM

__all__ = ["HintIntake", "StagePool", "stage_of_queues"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

EX_FAILURE = 1
_DATABASE_PAUSE_S = 1.0
_DATABASE_RETRY_S = 3.0  # well below the lease: the ledger's thread tries again, and renews in between
_POLL_S = 0.2  # how often a starting worker looks whether it is asked to stop
_ENGINE_LOOK_S = 0.5  # how often an engine is asked whether it lives
_LOAD_CLOSE_S = 10.0  # for a stop because the model does not load: there is nothing to drain
_CLOSE_S = 45.0  # for a stop, its drain not counted: then the process ends whatever still hangs in it


def stage_of_queues(queues: Iterable[str], pipelines: Pipelines) -> tuple[Pipeline, str]:
    """The one stage whose queue ``-Q`` names. Raises ConfigError."""
    names = list(queues)
    if len(names) != 1:
        given = ", ".join(names) or "none"
        raise ConfigError(f"a worker serves one stage: give one queue, -Q pipeline.stage (given: {given})", field="-Q")
    for pipeline in pipelines.values():
        for stage in pipeline.stages:
            if pipeline.queue(stage) == names[0]:
                return pipeline, stage
    known = ", ".join(pipeline.queue(stage) for pipeline in pipelines.values() for stage in pipeline.stages)
    raise ConfigError(f"no stage has the queue {names[0]!r}; there are {known or 'none'}", field="-Q")


class StagePool(BasePool):  # type: ignore[misc]  # celery has no types
    """One stage's engine, behind the methods Celery calls on a pool, in the order of its life."""

    app: OmniCelery

    def __init__(self, limit: int | None = None, *args: Any, **options: Any) -> None:
        super().__init__(limit, *args, **options)
        _, self._node = options.get("initargs", (None, platform.node()))
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage", daemon=True)
        self._hurry = asyncio.Event()
        self._signals = 0
        signals.worker_shutting_down.connect(self._on_signal, weak=False)
        self._hub: Any = None
        self._popping_stopped = False
        self.queue = ""  # the stage's, once it is known
        self.per_message = 1  # the hints of a full message
        self._broken: str | None = None
        self._llm: StageLLM | None = None
        self._ledger: Ledger | None = None
        self._relay: Relay | None = None
        self._database: Database | None = None
        self._executor: Executor | None = None
        self._liveness: Liveness | None = None
        self._engine_watch: asyncio.Task[None] | None = None
        self._may_drain = False
        self._ended = False

    # Start.

    def on_start(self) -> None:
        """Claim the slot, load the engine. Celery's consumer starts after it; raises WorkerShutdown if it must not."""
        use_batch_policy()
        self._thread.start()
        try:
            self._wait(self._open())
        except OmniJobsError as error:
            self._end(within_s=0.0)
            logger.critical("this worker cannot start: %s", error)
            raise WorkerShutdown(EX_FAILURE) from error
        except BaseException:
            self._end(within_s=0.0)
            raise

    async def _open(self) -> None:
        pipeline, stage = stage_of_queues(self.app.amqp.queues.consume_from, self.app.pipelines)
        slots = pipeline.stage(stage).slots
        self.queue = pipeline.queue(stage)
        self.per_message = self.app.broker.per_message[self.queue]
        if self.limit:
            slots = min(slots, self.limit * self.per_message)
        ledger = await self._take_slot(pipeline, stage, slots)
        await self._load(ledger, pipeline, stage, slots)
        await self._queue_is_a_list()
        logger.info("%s serves %s with %d slots", self._node, pipeline.queue(stage), slots)

    async def _take_slot(self, pipeline: Pipeline, stage: str, slots: int) -> Ledger:
        """Take the slot, before anything slow is imported or loaded: a predecessor's jobs wait for it."""
        settings = self.app.settings
        self._database = Database(settings.resolved_database_url, retry_for_s=_DATABASE_RETRY_S)
        self._relay = Relay(HintPublisher(self.app.broker))
        self._relay.start()
        ledger = self._ledger = Ledger(
            Jobs(
                self._database,
                announce_after_s=settings.announce_after_s,
                prune_after_s=Retention.of(settings).completed_s,
            ),
            NewWorker(
                worker_id=f"worker-{uuid.uuid4().hex}",
                slot=self._node,
                pipeline=pipeline.name,
                stage=stage,
                host=platform.node(),
                pid=os.getpid(),
                slots=slots,
                pipeline_version=pipeline.version,
                pipeline_digest=pipeline.digest,
                pid_space=incarnation.pid_space(),
                pid_started=incarnation.own_start(),
                heartbeat_s=settings.heartbeat_s,
            ),
            self._relay,
            settings,
            on_cancel=self._on_cancel,
            on_fenced=self._on_fenced,
        )
        await _schema_is_there(self._database)
        await asyncio.to_thread(ledger.take_slot, self._loop, _may_go_on)
        logger.info("%s: the slot is taken", self._node)
        return ledger

    async def _load(self, ledger: Ledger, pipeline: Pipeline, stage: str, slots: int) -> None:
        """The engine, and the lease after it: who has one serves."""
        settings = self.app.settings
        with self._load_limit(settings.load_limit_s):
            from omni_jobs.storage import open_store
            from workers.execution.executor import Executor
            from workers.stages.stage import StageLLM

            store = open_store(settings)
            self._llm = StageLLM.create(pipeline, stage, settings)
            await self._llm.start()
        _spare_the_collector()
        await asyncio.to_thread(ledger.serve, _may_go_on)
        self._executor = Executor(
            self._llm,
            ledger,
            store,
            settings,
            slots=slots,
            on_room=self._wake_celery,
            on_broken=self._on_broken,
        )
        self._engine_watch = self._loop.create_task(self._watch_engine(self._llm))
        executor = self._executor
        self._liveness = Liveness(
            settings.stall_after_s,
            self._loop,
            has_room=lambda: executor.room > 0,
            queue_depth=lambda: self.app.broker.depth(pipeline.queue(stage)),
            on_stall=self._on_broken,
        )
        self._liveness.start()

    @contextmanager
    def _load_limit(self, seconds: float) -> Iterator[None]:
        """What takes longer ends this worker, whatever hangs in it: a library's call, or this loop."""

        def over() -> None:
            self._exit_within(_LOAD_CLOSE_S)
            self._on_broken(f"the model is not loaded after {seconds:g} s, OMNI_JOBS_LOAD_LIMIT_S")

        timer = threading.Timer(seconds, over)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    async def _queue_is_a_list(self) -> None:
        """Wait while the queue's key in the broker holds something else: stock Celery's consumer ends on that."""
        while True:
            try:
                await asyncio.to_thread(self.app.broker.depth, self.queue)
                return
            except BrokerUnavailable as error:
                if "WRONGTYPE" not in str(error):
                    return  # Celery's consumer waits for a broker by itself
                logger.error("waiting: the key of %s in the broker is no list: %s", self.queue, error)
            await asyncio.sleep(_DATABASE_PAUSE_S)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Block Celery's main thread until the loop has done it; a request to stop cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(_POLL_S)
            except concurrent.futures.TimeoutError:
                if future.done():
                    raise
                if kombu_hooks.stop_asked():
                    future.cancel()
                    raise WorkerShutdown(EX_FAILURE if self._broken else 0) from None

    # Hints.

    def register_with_event_loop(self, hub: Any) -> None:
        self._hub = hub

    def has_room(self) -> bool:
        """Whether Celery should pop another message; asked on every turn of its hub."""
        executor = self._executor
        room = executor is not None and executor.room > 0
        self._popping_stopped = not room
        # Between the two lines above a slot may have become free, with nobody told: ask again.
        return room or (executor is not None and executor.room > 0)

    def room(self) -> int:
        """How many more hints are of use."""
        return self._executor.room if self._executor is not None else 0

    def popped(self) -> None:
        """A pop from its queue got its answer: this worker consumes."""
        if self._liveness is not None:
            self._liveness.mark()

    def offer(self, hints: Sequence[tuple[int, int]]) -> None:
        """Hand hints to the executor; called on Celery's main thread."""
        if self._executor is not None:
            self._executor.offer(hints)

    def on_apply(self, target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> None:
        """Refuse: hints come through :meth:`offer`, and this pool runs nothing else."""
        logger.error("a task other than a hint reached the pool and is dropped")

    def _wake_celery(self) -> None:
        if self._popping_stopped and self._hub is not None:
            self._popping_stopped = False
            self._hub.call_soon(_nothing)

    # What can go wrong meanwhile; called on the loop, ``_on_broken`` on any thread.

    def _on_cancel(self, stage_run_ids: list[int]) -> None:
        if self._executor is not None:
            self._executor.stop_runs(stage_run_ids)

    def _on_fenced(self, error: Fenced) -> None:
        if self._executor is not None:
            self._executor.abandon()
        self._on_broken(str(error))

    def _on_broken(self, reason: str) -> None:
        if self._broken is None:
            self._broken = reason
            logger.critical("this worker stops, to be started anew: %s", reason)
            kombu_hooks.ask_to_stop(EX_FAILURE)
            self._exit_within(_CLOSE_S)
            if self._hub is not None:
                self._hub.call_soon(_nothing)

    async def _watch_engine(self, llm: StageLLM) -> None:
        """An engine may die while nothing runs in it: nobody else would notice."""
        while llm.healthy:
            await asyncio.sleep(_ENGINE_LOOK_S)
        self._on_broken("the engine is gone")

    def _exit_within(self, seconds: float) -> None:
        """A thread that hangs in a call must not keep the process, and its slot, for ever."""

        def end() -> None:
            logger.critical("something hangs: the process ends without it")
            os._exit(EX_FAILURE if self._broken else 0)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()

    # Stop.

    def _on_signal(self, **_: Any) -> None:
        """Each signal that asks the worker to stop comes by here, in its handler; Celery ignores a second SIGTERM."""
        self._signals += 1
        if self._signals > 1:
            self._loop.call_soon_threadsafe(self._hurry.set)

    def on_close(self) -> None:
        """SIGTERM's way starts here; SIGQUIT's goes to ``on_stop`` at once."""
        self._may_drain = True

    def on_stop(self) -> None:
        """After SIGTERM drain, else hand back what runs. A second signal's call makes the first one hurry."""
        if self._ended:
            self._loop.call_soon_threadsafe(self._hurry.set)
        elif self._may_drain and self._broken is None:
            self._end(within_s=self.app.conf.worker_soft_shutdown_timeout)
        else:
            self._end(within_s=0.0)

    def on_terminate(self) -> None:
        self._may_drain = False
        self.on_stop()

    def _end(self, within_s: float) -> None:
        self._ended = True
        self._exit_within(within_s + _CLOSE_S)
        if self._liveness is not None:
            self._liveness.close()
        try:
            asyncio.run_coroutine_threadsafe(self._close(within_s), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)

    async def _close(self, within_s: float) -> None:
        """Every part that was opened, the last one first; each gets its turn whatever the others do."""
        if self._engine_watch is not None:
            self._engine_watch.cancel()
        steps: list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = []
        if (executor := self._executor) is not None:
            steps.append(("drain", lambda: executor.drain(within_s, self._hurry)))
        if (ledger := self._ledger) is not None:
            steps.append(("retire", lambda: asyncio.to_thread(ledger.close)))
        if (relay := self._relay) is not None:
            steps.append(("relay", lambda: asyncio.to_thread(relay.close)))
        if (llm := self._llm) is not None:
            steps.append(("engine", llm.close))
        if (database := self._database) is not None:
            steps.append(("database", lambda: asyncio.to_thread(database.close)))
        for name, step in steps:
            try:
                await step()
            except Exception:
                logger.exception("stopping: %s", name)

    # What ``celery inspect`` shows (workers.consumer.remote_control); on Celery's main thread.

    def stage_runs(self) -> list[dict[str, Any]]:
        """What is in flight, as JSON."""
        claims = [] if self._executor is None else self._executor.claims_in_flight()
        return [
            {
                "stage_run_id": claim.stage_run_id,
                "job_id": claim.job_id,
                "pipeline": claim.pipeline,
                "stage": claim.stage,
                "attempt": claim.attempt,
                "started_at": since,
            }
            for claim, since in claims
        ]

    @property
    def stage_runs_done(self) -> int:
        """How many stage runs have ended here since the start, whatever their end."""
        return 0 if self._executor is None else self._executor.ended

    @property
    def num_processes(self) -> int:
        return self._executor.slots if self._executor is not None else 0

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        if self._executor is not None and self._ledger is not None:
            info |= {
                "worker": self._ledger.worker.worker_id,
                "slots": self._executor.slots,
                "stage-runs-in-flight": self._executor.in_flight,
                "hints-in-hand": self._executor.hints_in_hand,
            }
        return info


async def _schema_is_there(database: Database) -> None:
    """Wait for the database and its migration: services start in any order."""
    while True:
        try:
            return await asyncio.to_thread(database.check)
        except DatabaseUnavailable as error:
            logger.error("waiting: %s", error)
        await asyncio.sleep(_DATABASE_PAUSE_S)


def _spare_the_collector() -> None:
    """What is loaded stays for the process's life: looking through it again took a sixth of an echo worker's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _may_go_on() -> bool:
    return not kombu_hooks.stop_asked()


def _nothing() -> None:
    """What the hub does when it is woken: its next turn asks for room."""


class HintIntake(bootsteps.StartStopStep):  # type: ignore[misc]
    """Consumer step: once the queue is consumed, and after every reconnect, set the channel up for hints."""

    requires = (Tasks, Control)

    def start(self, c: Any) -> None:
        channel = c.task_consumer.channel
        kombu_hooks.take_pops(
            channel,
            queue=c.pool.queue,
            answered=c.pool.popped,
            offer=c.pool.offer,
            room=c.pool.room,
            per_message=c.pool.per_message,
        )
        kombu_hooks.gate_pops(channel, c.pool.has_room)
        kombu_hooks.guard_control(c.connection)


@signals.celeryd_init.connect  # type: ignore[untyped-decorator]
def check_command_line(sender: str, instance: Any, conf: Any, options: dict[str, Any], **_: Any) -> None:
    """Refuse a wrong ``-Q`` before anything starts; derive ``-c`` where it is not given."""
    app = instance.app
    if not isinstance(app, OmniCelery):
        return
    queues = options.get("queues") or ()
    names = queues.split(",") if isinstance(queues, str) else list(queues)
    try:
        pipeline, stage = stage_of_queues(names or [q.name for q in conf.task_queues], app.pipelines)
    except ConfigError as error:
        sys.exit(f"celery worker: {error}")
    if not options.get("concurrency"):
        conf.worker_concurrency = math.ceil(pipeline.stage(stage).slots / app.broker.per_message[pipeline.queue(stage)])
