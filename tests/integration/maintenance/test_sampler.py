"""The sampler: its rescuer shows how the stages stand, and nothing once another rescuer takes the samples."""

import pytest

from omni_jobs.database.database import Database
from omni_jobs.jobs import Jobs
from omni_jobs.maintenance import sampler
from omni_jobs.maintenance.sampler import Sampler
from omni_jobs.metrics.rescuer_metrics import RescuerMetrics
from tests.integration.job_steps import new_job, register, submit_one

QUEUED = 'omni_jobs_stage_queued{pipeline="echo",stage="first"}'


def test_a_rescuer_shows_the_newest_sample_that_it_took_and_no_old_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, metrics = Jobs(database), RescuerMetrics()
    register(jobs, "w")
    submit_one(jobs, new_job())
    one = Sampler(jobs, metrics)
    one.round()
    shown = metrics.text().decode()
    assert f"{QUEUED} 1.0" in shown
    assert 'omni_jobs_stage_workers{pipeline="echo",stage="first"} 1.0' in shown
    assert 'omni_jobs_stage_pending{pipeline="echo",stage="second"} 1.0' in shown
    monkeypatch.setattr(jobs, "sample", lambda: None)  # another rescuer takes all from now on
    one.round()
    assert QUEUED in metrics.text().decode()
    monkeypatch.setattr(sampler, "_OLD_AFTER_S", -1.0)
    one.round()
    assert QUEUED not in metrics.text().decode()
