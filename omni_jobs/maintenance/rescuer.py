"""The rescuer: it takes stage runs back from lost workers, expires late jobs and calibrates estimates of waits.

``run`` is the process ``omni-jobs rescuer``. Any number of them may run, on any host, because each step of a round is
one transaction. The pruner (:mod:`omni_jobs.maintenance.pruner`) and the sampler (:mod:`omni_jobs.maintenance.sampler`)
run in threads of the same process, so that a full object store or a long count holds up no rescue.
"""

import logging
import signal
import threading
from types import FrameType

from omni_jobs.broker.broker import Broker
from omni_jobs.database.database import Database
from omni_jobs.database.database_metrics import DatabaseMetrics
from omni_jobs.http.metrics_server import MetricsServer
from omni_jobs.jobs import DatabasePresence, Jobs, transition_observers
from omni_jobs.maintenance.pruner import Pruner
from omni_jobs.maintenance.rounds import Rounds
from omni_jobs.maintenance.sampler import Sampler
from omni_jobs.metrics.beat_file import BeatFile
from omni_jobs.metrics.rescuer_metrics import RescuerMetrics
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings
from omni_jobs.storage import open_store
from omni_jobs.tenants.sessions import Sessions
from omni_jobs.tracing.spans import open_spans

logger = logging.getLogger(__name__)

_PRUNER_STOP_S = 5.0


class Rescuer(Rounds):
    """Frees stage runs of lost workers, expires late jobs, lets in held ones and calibrates estimates.

    It does so every ``every_s`` seconds. After an outage of the database, and after its own start, it gives each worker
    a lease of time to renew: while no worker can, none is lost.
    """

    def __init__(
        self,
        jobs: Jobs,
        broker: Broker,
        every_s: float,
        beat_file: BeatFile | None = None,
        *,
        lease_s: float = 10.0,
        metrics: RescuerMetrics | None = None,
    ) -> None:
        """``lease_s`` is the workers' shortest lease: an outage of half of it counts as one."""
        super().__init__("rescuer", every_s, beat_file)
        self._jobs = jobs
        self._broker = broker
        self._metrics = metrics or RescuerMetrics()
        self._presence = DatabasePresence(1.1 * every_s + lease_s / 2)

    def _work(self) -> None:
        rescued = self._jobs.rescue(self._presence)
        self._metrics.freed.inc(rescued.freed)
        self._metrics.expired.inc(rescued.expired)
        try:
            self._broker.ring(rescued.queues)
        finally:  # which needs no broker
            self._jobs.calibrate()
        self._metrics.round_at.set_to_current_time()


def run(settings: Settings) -> None:
    """Run a rescuer and a pruner in this process until SIGTERM or SIGINT. Raises ConfigError; logs later errors.

    Each round of the rescuer that went well is a beat of the setting ``beat_file``.
    """
    pipelines = load_pipelines(settings.resolved_stage_configs)
    metrics, spans = RescuerMetrics(), open_spans(settings, "rescuer")
    database = Database(settings.resolved_database_url, observers=[DatabaseMetrics(metrics)])
    jobs = Jobs(database, observers=transition_observers(spans))
    broker = Broker(settings, pipelines)
    beats = BeatFile(settings.beat_file)
    rescuer = Rescuer(jobs, broker, settings.rescue_every_s, beats, lease_s=settings.lease_s, metrics=metrics)
    pruner = Pruner(jobs, open_store(settings), settings, sessions=Sessions(database), metrics=metrics)
    sampler = Sampler(jobs, metrics)
    metrics_server = MetricsServer(metrics, settings)
    # A daemon, so that a hung object store does not keep the process from ending; a pruner may end anywhere.
    pruner_thread = threading.Thread(target=pruner.run, args=(database,), name="pruner", daemon=True)
    sampler_thread = threading.Thread(target=sampler.run, args=(database,), name="sampler", daemon=True)

    def stop(number: int, frame: FrameType | None) -> None:
        rescuer.stop()
        pruner.stop()
        sampler.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    logger.info("rescuing every %g s, pruning every %g s", settings.rescue_every_s, settings.prune_every_s)
    pruner_thread.start()
    sampler_thread.start()
    metrics_server.start()
    try:
        rescuer.run(database)
    finally:
        pruner.stop()
        sampler.stop()
        pruner_thread.join(_PRUNER_STOP_S)
        sampler_thread.join(_PRUNER_STOP_S)
        metrics_server.close()
        if spans is not None:
            spans.close()
        database.close()
