"""What a worker has counted stands in its row: the newest with a renewal, its own alone, and none of a predecessor."""

from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Jobs, NewWorker
from omni_jobs.metrics.stage_stats import Histogram, StageStats, WorkerStats
from omni_jobs.views import WorkerInfo, WorkerView
from tests.integration.job_steps import register

COUNTED = WorkerStats(StageStats({"run": Histogram({"0.5": 2}, 0.7)}, {"completed": 2}), 64 << 20, 1_700_000_000.5)


def only(jobs: Jobs) -> WorkerView:
    [worker] = jobs.workers()
    return worker


def test_a_renewal_records_what_was_counted_and_one_without_news_leaves_it(jobs: Jobs) -> None:
    register(jobs, "w")
    assert (only(jobs).ended, only(jobs).memory_bytes, only(jobs).claimed_at) == ({}, None, None)
    jobs.renew("w", 60, stats=COUNTED.to_json())
    jobs.renew("w", 60)
    seen = only(jobs)
    assert (seen.ended, seen.memory_bytes) == ({"completed": 2}, 64 << 20)
    assert seen.claimed_at is not None
    assert seen.claimed_at.timestamp() == 1_700_000_000.5


def test_a_worker_keeps_its_counts_as_it_registers_again_and_inherits_none(jobs: Jobs) -> None:
    register(jobs, "w", slot="slot")
    jobs.renew("w", 60, stats=COUNTED.to_json())
    register(jobs, "w", slot="slot")
    assert only(jobs).ended == {"completed": 2}
    register(jobs, "next", slot="slot")
    assert (only(jobs).id, only(jobs).ended) == ("next", {})


def test_a_worker_says_what_it_runs_on(jobs: Jobs) -> None:
    info = WorkerInfo(device="cuda 0,1", versions={"python": "3.11.2", "vllm": "0.32.0"}, metrics_port=9100)
    stage = StageId(PipelineId("echo", "d"), "first")
    jobs.register_worker(NewWorker("w", "slot", stage, "host", 1, 4, "1", info=info.model_dump()), 60.0)
    assert only(jobs).info == info
    register(jobs, "other", slot="other")
    assert [worker.info for worker in jobs.workers() if worker.id == "other"] == [WorkerInfo()]
