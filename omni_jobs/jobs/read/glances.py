"""Glances at jobs: what those who watch them see. They are read many times a second, so as cheaply as can be."""

from collections import defaultdict
from collections.abc import Collection

from sqlalchemy import Connection

from omni_jobs.database.statement import Statements, listed
from omni_jobs.jobs.values import Glance, RunGlance
from omni_jobs.states import JobState, StageRunState

_sql = Statements(__file__)


def glances(tx: Connection, job_ids: Collection[str], with_runs: Collection[str] = ()) -> dict[str, Glance]:
    """Return glances at those of these jobs that exist, by job id; those at ``with_runs`` have the stage runs."""
    runs: dict[str, list[RunGlance]] = defaultdict(list)
    if with_runs:
        for job_id, id_, stage, state, *rest in _sql["runs"].rows(tx, {"ids": listed(with_runs)}):
            runs[job_id].append(RunGlance(id_, stage, StageRunState(state), *rest))
    states = _sql["states"].rows(tx, {"ids": listed(job_ids)})
    return {job_id: Glance(JobState(state), tuple(runs.get(job_id, ()))) for job_id, state in states}
