"""``RunMetrics``: measures a worker's stage runs, and counts how they end."""

from omni_jobs.jobs import Claim, Completion
from omni_jobs.metrics.worker_metrics import WorkerMetrics
from omni_jobs.storage import ObjectRef
from workers.execution.observers.run_observer import RunObserver, RunResult, StepTimes
from workers.stages.types import Progress

_TOKENS = "tokens"  # the unit of progress of stages that make them


class RunMetrics(RunObserver):
    """Adds each step's seconds, the bytes that are handed on and what was made to the worker's metrics."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._has_token: set[int] = set()  # of the stage runs in flight

    def claimed(self, claim: Claim, times: StepTimes) -> None:
        self._metrics.claim(claim.waited_s, repeated=claim.attempt > 1)

    def progressed(self, claim: Claim, times: StepTimes, progress: Progress) -> None:
        if progress.unit != _TOKENS or progress.done == 0 or claim.stage_run_id in self._has_token:
            return
        self._has_token.add(claim.stage_run_id)
        if progress.resumed_at is None:
            self._metrics.observe("first_token", times.since_claim() - (times.loaded_s or 0.0))

    def stored(self, claim: Claim, times: StepTimes, completion: Completion) -> None:
        size = completion.payload_bytes
        if completion.artifacts:
            size += sum(artifact.ref.size for artifact in completion.artifacts)
        self._metrics.store(size, completion.made)

    def ended(self, claim: Claim, times: StepTimes, result: RunResult) -> None:
        """Note the end, and how long the steps took that the attempt came through."""
        self._has_token.discard(claim.stage_run_id)
        self._metrics.end(result.kind if result.error is None else type(result.error).code)
        if times.loaded_s is None:
            return
        self._metrics.observe("load", times.loaded_s)
        if claim.upstream:
            self._metrics.load(sum(_size(each) for each in claim.upstream.values()))
        if times.ran_s is None:
            return
        self._metrics.observe("run", times.ran_s - times.loaded_s)
        if times.stored_s is not None:
            self._metrics.observe("store", times.stored_s - times.ran_s)


def _size(payload: ObjectRef | bytes | None) -> int:
    if payload is None:
        return 0
    return len(payload) if isinstance(payload, bytes) else payload.size
