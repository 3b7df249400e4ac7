"""The sampler: its rescuer shows how the stages stand, and nothing once another rescuer takes the samples."""

import pytest

from omni_jobs.database.database import Database
from omni_jobs.identity import PipelineId
from omni_jobs.jobs import FINE_S, Jobs
from omni_jobs.maintenance import sampler
from omni_jobs.maintenance.sampler import Sampler
from omni_jobs.metrics.rescuer_metrics import RescuerMetrics
from tests.integration.job_steps import new_job, register, submit_one

QUEUED = 'omni_jobs_stage_queued{pipeline="echo",stage="first",version="1"}'


def test_a_rescuer_shows_the_newest_sample_that_it_took_and_no_old_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, metrics = Jobs(database), RescuerMetrics()
    jobs.tell_versions([(PipelineId("echo", "d"), "1")])
    register(jobs, "w")
    submit_one(jobs, new_job())
    one = Sampler(jobs, metrics)
    one.round()
    shown = metrics.text().decode()
    assert f"{QUEUED} 1.0" in shown
    assert 'omni_jobs_stage_workers{pipeline="echo",stage="first",version="1"} 1.0' in shown
    assert 'omni_jobs_stage_pending{pipeline="echo",stage="second",version="1"} 1.0' in shown
    monkeypatch.setattr(jobs, "sample", lambda: None)  # another rescuer takes all from now on
    one.round()
    assert QUEUED in metrics.text().decode()
    monkeypatch.setattr(sampler, "_OLD_AFTER_S", -1.0)
    one.round()
    assert QUEUED not in metrics.text().decode()


def test_each_version_is_shown_by_itself_and_samples_have_all_of_them(database: Database) -> None:
    jobs, metrics = Jobs(database), RescuerMetrics()
    jobs.tell_versions([(PipelineId("echo", "d"), "1"), (PipelineId("echo", "e"), "2")])
    for number in range(3):
        register(jobs, f"w{number}", version="2", digest="e")
    register(jobs, "drained")
    jobs.drain("drained")
    for _ in range(2):
        submit_one(jobs, new_job())
    submit_one(jobs, new_job(pipeline=PipelineId("echo", "e"), pipeline_version="2"))
    submit_one(jobs, new_job(pipeline=PipelineId("echo", "f"), pipeline_version="3"))  # no server told of it
    Sampler(jobs, metrics).round()
    shown = [each for each in metrics.text().decode().splitlines() if each.startswith("omni_jobs_stage_")]
    of_first = {tuple(each.split('stage="first",version=')) for each in shown if 'stage="first"' in each}
    expected = {
        "queued": {"1": 2, "2": 1, "": 1},
        "running": {"1": 0, "2": 0, "": 0},
        "pending": {"1": 0, "2": 0, "": 0},
        "workers": {"1": 0, "2": 3, "": 0},
        "loading": {"1": 0, "2": 0, "": 0},
    }
    assert of_first == {
        (f'omni_jobs_stage_{name}{{pipeline="echo",', f'"{version}"}} {value:.1f}')
        for name, values in expected.items()
        for version, value in values.items()
    }
    [first, second] = jobs.stage_samples(FINE_S, 0, 1e12, pipeline="echo")
    assert (first.standing.queued, first.standing.workers, first.standing.slots) == (4, 3, 12)
    assert second.standing.pending == 4
