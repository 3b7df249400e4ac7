"""The workers by stage, and how a lease stands."""

from datetime import UTC, datetime, timedelta

import pytest

from omni_jobs.dashboard.workers import a_minute, crews_of, lease_state
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.views import WorkerView

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def worker(stage: str = "first", **fields: object) -> WorkerView:
    values = {
        "id": "w",
        "slot": "w",
        "pipeline": "echo",
        "stage": stage,
        "host": "h",
        "pid": 1,
        "slots": 8,
        "running": 3,
        "pipeline_version": "1",
        "pipeline_digest": "0" * 16,
        "started_at": NOW,
        "renewed_at": NOW,
        "lease_until": NOW + timedelta(seconds=15),
    }
    return WorkerView.model_validate(values | fields)


def test_workers_stand_by_stage_with_their_sums() -> None:
    crews = crews_of([worker(), worker(slots=2), worker("second")], Pipelines([]), {("echo", "second"): 1.0})
    assert [(each.stage, each.running, each.slots, each.is_paused) for each in crews] == [
        ("first", 6, 10, False),
        ("second", 3, 8, True),
    ]
    assert {(each.kept, each.digest) for each in crews} == {(0, None)}  # the pipeline is not served here


@pytest.mark.parametrize(
    ("passed_s", "state"), [(0, "renewed"), (7, "renewed"), (8, "late"), (15, "over"), (99, "over")]
)
def test_a_lease_is_late_once_half_of_it_is_over(passed_s: float, state: str) -> None:
    assert lease_state(worker(), NOW + timedelta(seconds=passed_s)) == state


@pytest.mark.parametrize(
    ("completed", "passed_s", "text"), [(0, 0, "0.0"), (3, 60, "3.0"), (1, 600, "0.1"), (90_000, 60, "90,000")]
)
def test_a_worker_has_completed_so_many_a_minute(completed: int, passed_s: float, text: str) -> None:
    its = worker(ended={"completed": completed, "worker_lost": 7})
    assert a_minute(its, NOW + timedelta(seconds=passed_s)) == text
