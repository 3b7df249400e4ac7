"""Why a job waits and for how long, on both databases."""

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import OutOfMemory
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Detail, DownStage, Jobs, NewWorker, SubmitResult
from omni_jobs.jobs.read import calibrate, line
from omni_jobs.jobs.read.estimates import SOON
from omni_jobs.priority import Priority
from omni_jobs.views import CalibrationView, WaitingView
from tests.integration.job_steps import (
    DIAMOND,
    claim,
    complete_all,
    done,
    fail,
    failed,
    new_job,
    pass_time,
    register,
    register_each,
    submit_one,
)

ONE = {"first": []}


def waiting(jobs: Jobs, job_id: str) -> WaitingView:
    found = jobs.get(job_id).waiting
    assert found is not None
    return found


def submit(jobs: Jobs, count: int = 1, **changes: object) -> list[str]:
    return [submit_one(jobs, new_job(ONE, **changes)).job_id for _ in range(count)]


def test_a_job_waits_for_its_turn_behind_those_of_its_own_tenant(jobs: Jobs) -> None:
    register(jobs, "w", slots=1)
    first, *_ = submit(jobs, 3, tenant="a")
    [b] = submit(jobs, tenant="b")
    last = submit(jobs, 2, tenant="a")[-1]
    found = [waiting(jobs, job_id) for job_id in (first, b, last)]
    assert [each.reason for each in found] == ["turn"] * 3
    assert [each.position for each in found] == [0, 0, 4]
    assert all(each.position_is_exact for each in found)
    assert found[2].message.startswith("4 of your own stage runs stand before it at stage first")
    [urgent] = submit(jobs, tenant="a", priority=Priority.HIGH)
    assert waiting(jobs, urgent).position == 2
    assert waiting(jobs, last).position == 5


def test_why_each_stage_waits_is_said_without_the_views_of_its_jobs(jobs: Jobs) -> None:
    [job_id] = submit(jobs, tenant="a")
    assert waiting(jobs, job_id).reason == "no_worker"
    assert jobs.wait_reasons() == jobs.wait_reasons("a") == {("echo", "1", "first"): "no_worker"}
    assert jobs.wait_reasons("b") == {}
    register(jobs, "w")
    assert jobs.wait_reasons() == {("echo", "1", "first"): "turn"}
    claim(jobs, "w")
    assert jobs.wait_reasons() == {}


def test_a_running_job_waits_for_nothing(jobs: Jobs) -> None:
    register(jobs, "w")
    [job_id] = submit(jobs)
    claim(jobs, "w")
    assert jobs.get(job_id).waiting is None


def test_an_engine_is_down_until_a_worker_serves_in_its_slot(jobs: Jobs, database: Database) -> None:
    register(jobs, "w", slot="slot")
    [job_id] = submit(jobs)
    jobs.retire_worker("w")
    assert (waiting(jobs, job_id).reason, jobs.down_engines()) == ("no_worker", {})
    for worker_id in ("w2", "w3"):  # the second could not load it
        jobs.register_worker(new_worker(worker_id, "slot"), 60.0, loading=True)
        jobs.retire_worker(worker_id, engine_down=True)
    found = waiting(jobs, job_id)
    assert (found.reason, found.message) == (
        "engine_down", "the engine of stage first is down, and no worker loads it yet",
    )  # fmt: skip
    assert jobs.down_engines() == {DownStage("echo", "d", "first"): 1}
    jobs.register_worker(new_worker("w4", "slot"), 60.0, loading=True)
    found = waiting(jobs, job_id)
    assert (found.reason, "loads it again" in found.message) == ("engine_down", True)
    register(jobs, "other")
    assert waiting(jobs, job_id).reason == "turn", "another worker serves"
    jobs.retire_worker("other")
    jobs.register_worker(new_worker("w4", "slot"), 60.0)
    assert (waiting(jobs, job_id).reason, jobs.down_engines()) == ("turn", {})
    jobs.retire_worker("w4", engine_down=True)
    with database.begin() as tx:
        tx.execute(text("UPDATE down_engines SET at = at - 3601"))
    assert (waiting(jobs, job_id).reason, jobs.down_engines()) == ("no_worker", {}), "nobody came back in an hour"


def test_an_engine_that_is_down_is_that_of_its_version(jobs: Jobs, database: Database) -> None:
    [old], [new] = submit(jobs), submit(jobs, pipeline=NEW.pipeline, pipeline_version="2")

    def reasons() -> list[str]:
        return [waiting(jobs, job_id).reason for job_id in (old, new)]

    register(jobs, "w", version="2", digest="e")
    jobs.retire_worker("w", engine_down=True)
    assert reasons() == ["no_worker", "engine_down"]
    assert jobs.down_engines() == {DownStage("echo", "e", "first"): 1}
    register(jobs, "old")
    assert reasons() == ["turn", "engine_down"], "a worker that serves another version does not help"
    with database.begin() as tx:  # noted by a build that knew no versions of them
        tx.execute(text("UPDATE down_engines SET pipeline_digest = NULL"))
    assert jobs.down_engines() == {DownStage("echo", None, "first"): 1}
    assert reasons() == ["turn", "no_worker"]
    jobs.retire_worker("old")
    assert reasons() == ["engine_down", "engine_down"], "of which version it was nobody knows"


def new_worker(worker_id: str, slot: str) -> NewWorker:
    return NewWorker(worker_id, slot, StageId(PipelineId("echo", "d"), "first"), "host", 1, 4, "1")


def test_an_obstacle_is_named_rather_than_the_turn(jobs: Jobs, database: Database) -> None:
    [job_id] = submit(jobs)
    assert waiting(jobs, job_id).reason == "no_worker"
    holder = jobs.slot_holder("w")
    assert holder is None
    register(jobs, "w")
    with database.begin() as tx:
        tx.execute(text("UPDATE workers SET loading = true"))
    assert waiting(jobs, job_id).reason == "loading_model"
    assert jobs.get(job_id).stages[0].reason == "loading_model"
    register(jobs, "w2")
    assert waiting(jobs, job_id).reason == "turn"
    assert jobs.get(job_id).stages[0].reason is None
    jobs.pause(StageId(PipelineId("echo", ""), "first"))
    found = waiting(jobs, job_id)
    assert (found.reason, found.message, found.estimate) == ("paused", "stage first is paused", None)
    jobs.resume(StageId(PipelineId("echo", ""), "first"))
    [claimed] = claim(jobs, "w2")
    fail(jobs, failed(claimed, "w2", OutOfMemory("none left")))
    found = waiting(jobs, job_id)
    assert found.reason == "retry_backoff"
    assert found.due_at is not None
    assert (found.position, found.estimate) == (None, None)
    pass_time(database, 60)
    register(jobs, "w2")
    assert waiting(jobs, job_id).reason == "turn"


def test_a_retry_whose_pause_is_over_waits_for_its_turn_beside_a_stage_that_runs(
    jobs: Jobs, database: Database
) -> None:
    job_id = submit_one(jobs, new_job(DIAMOND)).job_id
    register_each(jobs, DIAMOND, lease_s=10_000)
    complete_all(jobs, "a")
    [claimed] = claim(jobs, "b")
    assert claim(jobs, "c")
    fail(jobs, failed(claimed, "b", OutOfMemory("none left")))
    assert [stage.reason for stage in jobs.get(job_id).stages] == [None, "retry_backoff", None, None]
    pass_time(database, 60)
    for view in (jobs.get(job_id), *jobs.list().jobs):
        assert view.waiting is None
        assert [stage.reason for stage in view.stages] == [None] * 4


def test_a_list_says_the_reason_alone(jobs: Jobs) -> None:
    register(jobs, "w", slots=1)
    submit(jobs, 2)
    jobs.renew("w", 60, run_s=1.0)
    for job in jobs.list().jobs:
        assert job.waiting is not None
        assert (job.waiting.reason, job.waiting.position, job.waiting.estimate) == ("turn", None, None)


def test_an_estimate_goes_by_the_work_before_and_the_workers(jobs: Jobs) -> None:
    register(jobs, "w", slots=2)
    ids = submit(jobs, 12)
    claim(jobs, "w", 2)
    found = waiting(jobs, ids[-1])
    assert (found.position, found.estimate) == (9, None)
    assert "nobody knows how long" in found.message
    jobs.renew("w", 60, run_s=3.0)
    jobs.renew("w", 60)  # one that knows nothing new changes nothing
    estimate = waiting(jobs, ids[-1]).estimate
    assert estimate is not None
    assert estimate.low_s < 15.0 < estimate.high_s
    nearer = waiting(jobs, ids[2]).estimate
    assert nearer is not None
    assert nearer.low_s < 1.5 < nearer.high_s < estimate.low_s
    register(jobs, "w2", slots=8)
    soon = waiting(jobs, ids[2]).estimate
    assert soon is not None
    assert (soon.low_s, soon.high_s) == SOON
    assert soon.basis == "a slot is free"


def test_beyond_what_is_counted_the_turns_tell(jobs: Jobs, database: Database) -> None:
    register(jobs, "w", slots=1)
    ids = [
        result.job_id
        for result in jobs.submit_all([new_job(ONE) for _ in range(line.COUNTED + 500)])
        if isinstance(result, SubmitResult)
    ]
    jobs.renew("w", 60, run_s=1.0)
    found = waiting(jobs, ids[-1])
    assert (found.position, found.position_is_exact) == (line.COUNTED, False)
    assert found.message.startswith("500 or more of your own stage runs")
    with database.begin() as tx:
        row = tx.execute(text("SELECT turn, id FROM stage_runs WHERE job_id = :id"), {"id": ids[-1]}).one()
        place = line.place(tx, StageId(PipelineId("echo", "d"), "first"), line.QueuedRun(*row, False))
    assert place.before == pytest.approx(line.COUNTED + 499, rel=0.01)


def test_what_others_wait_for_shows_in_no_position(jobs: Jobs) -> None:
    """A position and whether it is exact are those of a tenant alone, however many stage runs of others stand first."""
    register(jobs, "w", slots=1)
    own = submit(jobs, 3, tenant="b")
    before = [waiting(jobs, job_id) for job_id in own]
    jobs.submit_all([new_job(ONE, tenant=f"a{n % 9}", priority=Priority.HIGH) for n in range(line.COUNTED + 100)])
    [last] = submit(jobs, tenant="b", priority=Priority.LOW)
    after = [waiting(jobs, job_id) for job_id in [*own, last]]
    assert [(each.position, each.position_is_exact) for each in after] == [(n, True) for n in range(4)]
    assert [each.message for each in after[:3]] == [each.message for each in before]


def test_a_tenant_is_told_its_wait_in_coarse_steps(jobs: Jobs) -> None:
    register(jobs, "w", slots=1)
    jobs.renew("w", 60, run_s=1.0)
    [job_id] = submit(jobs, tenant="b")
    ends = set()
    for _ in range(40):
        submit(jobs, tenant="a", priority=Priority.HIGH)
        coarse = jobs.get(job_id, "b", detail=Detail.COARSE).waiting
        assert coarse is not None
        assert coarse.estimate is not None
        fine = waiting(jobs, job_id).estimate
        assert fine is not None
        ends |= {coarse.estimate.low_s, coarse.estimate.high_s}
        assert coarse.estimate.low_s <= fine.low_s <= fine.high_s <= coarse.estimate.high_s
    assert ends <= {0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0}


def test_calibration_keeps_estimates_and_what_became_of_them(jobs_or_forgetful: Jobs, database: Database) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "w", slots=1)
    jobs.calibrate()
    assert jobs.calibrations() == []  # nothing waits
    submit(jobs, 6)
    [running] = claim(jobs, "w", 1)
    jobs.calibrate()
    assert jobs.calibrations() == []  # nobody knows how long stage runs take
    jobs.renew("w", 60, run_s=1.0)
    jobs.calibrate()
    [found] = jobs.calibrations()
    assert (found.pipeline, found.stage, found.estimates, found.held, found.share) == ("echo", "first", 0, 0, None)
    with database.begin() as tx:
        tx.execute(text("UPDATE estimates SET at = at - 2, low_s = 0, high_s = 60"))
        before = tx.execute(text("SELECT * FROM calibrations")).one()
    jobs.report([done(running, "w")])
    claim(jobs, "w")  # all
    jobs.calibrate()
    [found] = jobs.calibrations()
    assert found.estimates == found.held > 0
    assert found == CalibrationView(
        pipeline="echo", stage="first", estimates=found.estimates, held=found.estimates, share=1.0
    )
    with database.begin() as tx:
        after = tx.execute(text("SELECT * FROM calibrations")).one()
        assert tx.execute(text("SELECT count(*) FROM estimates WHERE waited_s IS NULL")).scalar_one() == 0
    assert after.low_tail > before.low_tail
    assert after.high_tail > before.high_tail


def test_estimates_of_what_never_starts_are_dropped(jobs: Jobs, database: Database) -> None:
    register(jobs, "w", slots=1)
    ids = submit(jobs, 3)
    claim(jobs, "w", 1)
    jobs.renew("w", 60, run_s=1.0)
    jobs.calibrate()
    assert kept(database) > 0
    for job_id in ids[1:]:
        jobs.cancel(job_id)
    jobs.calibrate()
    assert kept(database) == 0
    submit(jobs, 2)
    jobs.calibrate()
    assert kept(database) > 0
    jobs.pause(StageId(PipelineId("echo", ""), "first"))
    jobs.calibrate()
    assert kept(database) == 0


def kept(database: Database) -> int:
    with database.begin() as tx:
        return int(tx.execute(text("SELECT count(*) FROM estimates")).scalar_one())


def two_versions(jobs: Jobs) -> list[str]:
    """Version 1 has one worker, version 2 many slots, and the first claims have been made; the jobs that 1 has left."""
    jobs.tell_versions([(OLD.pipeline, "1"), (NEW.pipeline, "2")])
    register(jobs, "old", slots=1)
    old = submit(jobs, 12)
    claim(jobs, "old", 1)
    jobs.renew("old", 60, run_s=3.0)
    register(jobs, "new", slots=50, version="2", digest="e")
    submit(jobs, 90, pipeline=NEW.pipeline, pipeline_version="2")
    claim(jobs, "new", 50)
    jobs.renew("new", 60, run_s=3.0)
    return old[1:]


OLD, NEW = (StageId(PipelineId("echo", digest), "first") for digest in "de")


def test_a_version_waits_behind_its_own_and_for_its_own_workers(jobs: Jobs) -> None:
    left = two_versions(jobs)
    [newest] = submit(jobs, pipeline=NEW.pipeline, pipeline_version="2")
    found = waiting(jobs, left[-1])
    assert found.position == 10
    assert found.estimate is not None
    assert found.estimate.low_s < 33.0 < found.estimate.high_s
    soon = waiting(jobs, newest)
    assert soon.position == 40
    assert soon.estimate is not None
    assert soon.estimate.low_s < 2.46 < soon.estimate.high_s < found.estimate.low_s
    jobs.report([done(each, "new") for each in claim(jobs, "new", 100)])
    assert waiting(jobs, left[-1]) == found, "free slots of the other version change nothing"
    jobs.retire_worker("old")
    found = waiting(jobs, left[-1])
    assert (found.reason, found.estimate) == ("no_worker", None)
    assert found.message.endswith("those that serve have another, version 2 (digest e)")


def test_a_pause_of_one_version_drops_no_estimate_of_another(jobs: Jobs, database: Database) -> None:
    two_versions(jobs)
    jobs.calibrate()
    of_each = "SELECT count(*) FROM estimates JOIN stage_runs r ON r.id = stage_run_id WHERE r.pipeline_digest = :of"
    jobs.pause(OLD, version="1")
    jobs.calibrate()
    with database.begin() as tx:
        counts = [tx.execute(text(of_each), {"of": each.pipeline.digest}).scalar_one() for each in (OLD, NEW)]
    assert counts[0] == 0
    assert counts[1] > 0
    jobs.pause(OLD)
    jobs.calibrate()
    assert kept(database) == 0


def test_a_version_without_workers_widens_no_interval_of_another(jobs: Jobs, database: Database) -> None:
    two_versions(jobs)
    jobs.calibrate()
    with database.begin() as tx:
        of_old = "SELECT id FROM stage_runs WHERE pipeline_digest = 'd'"
        tx.execute(text(f"UPDATE estimates SET at = at - 9999 WHERE stage_run_id IN ({of_old})"))
    jobs.calibrate()
    assert high_factor(database) > 10, "a worker of version 1 serves, so its waits tell of how long waits are"
    jobs.retire_worker("old")
    jobs.calibrate()
    assert high_factor(database) < 10


def high_factor(database: Database) -> float:
    with database.begin() as tx:
        return float(tx.execute(text("SELECT high_factor FROM calibrations")).scalar_one())


def test_old_estimates_are_pruned(jobs: Jobs, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "KEPT", 3)
    register(jobs, "w", slots=1)
    submit(jobs, 30)
    claim(jobs, "w", 1)
    jobs.renew("w", 60, run_s=1.0)
    for _ in range(8):
        jobs.calibrate()
        assert kept(database) <= 3
