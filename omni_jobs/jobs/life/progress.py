"""Record the progress of running stage runs. Nothing waits for a lock here, because a report may be dropped."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select, update

from omni_jobs.database.tables import StageRunRow, state_seen
from omni_jobs.jobs.values import ProgressReport
from omni_jobs.states import StageRunState

_SET_IF_RUNNING = (
    update(StageRunRow)
    .where(
        StageRunRow.id.in_(
            select(StageRunRow.id)
            .where(
                StageRunRow.id == bindparam("stage_run"),
                StageRunRow.attempt == bindparam("held_attempt"),
                state_seen(StageRunRow.state, StageRunState.RUNNING),
            )
            .with_for_update(skip_locked=True)
        )
    )
    .values(progress=bindparam("new_progress"))
)


def report_progress(tx: Connection, reports: Sequence[ProgressReport]) -> None:
    """Record these progress reports. Drop those of attempts that no longer run or whose rows are locked."""
    if reports:
        tx.execute(
            _SET_IF_RUNNING,
            [
                {
                    "stage_run": report.stage_run_id,
                    "held_attempt": report.attempt,
                    "new_progress": {
                        "done": report.done,
                        "total": report.total,
                        "unit": report.unit,
                        "text": report.text,
                        "resumed_at": report.resumed_at,
                        **({} if report.picture is None else {"picture": report.picture}),
                    },
                }
                for report in reports
            ],
        )
