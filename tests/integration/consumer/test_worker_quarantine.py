"""A job that kills its workers is condemned by itself, not together with its neighbours."""

import signal
from pathlib import Path

from omni_jobs.states import JobState, StageRunState
from tests.integration.echo_stack import ONE_LOSS, EchoStack

NEIGHBOURS = 4


def test_the_culprit_is_quarantined_and_its_neighbours_complete(
    sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """The worker is killed whenever the culprit is seen running, as it would be by a model that crashes on it."""
    options = {"OMNI_JOBS_LEASE_S": "60", "OMNI_JOBS_HEARTBEAT_S": "1"}
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, options, config=ONE_LOSS)
    try:
        worker, _ = stack.start("first", "second")
        culprit = stack.submit("culprit", first={"delay_s": 30})
        neighbours = [stack.submit(f"neighbour {n}", first={"delay_s": 4}) for n in range(NEIGHBOURS)]
        kills, beside = 0, []
        while not stack.jobs.get(culprit).status.is_final:
            run = stack.until(lambda: _runs_or_ended(stack, culprit), 60)
            if run == "ended":
                break
            if not beside:  # the culprit was there a moment before them
                stack.until(lambda: _running(stack, neighbours) or None, 60)
            beside.append(_running(stack, neighbours))
            worker.stop(signal.SIGKILL)
            kills += 1
            worker = stack.launch("first", worker.slot)
            stack.serving(worker)
        view = stack.jobs.get(culprit)
        assert view.status is JobState.FAILED
        assert view.error is not None
        assert view.error.code == "quarantined"
        assert kills == stack.pipelines["echo"].stage("first").retries.worker_lost + 1
        assert beside[0], "they began together"
        assert beside[-1] == 0, "nothing was held beside it when it was condemned"
        for job_id in neighbours:
            assert stack.ended(job_id, within_s=60).status is JobState.COMPLETED
    finally:
        stack.close()


def _runs_or_ended(stack: EchoStack, job_id: str) -> str | None:
    view = stack.jobs.get(job_id)
    if view.status.is_final:
        return "ended"
    run = view.stages[0]
    return "running" if run.status is StageRunState.RUNNING and run.progress else None


def _running(stack: EchoStack, job_ids: list[str]) -> int:
    """How many of these jobs run their first stage."""
    return [stack.jobs.get(job_id).stages[0].status for job_id in job_ids].count(StageRunState.RUNNING)
