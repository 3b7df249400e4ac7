"""Record the progress of running stage runs, and what they have written, of jobs that are watched.

A report waits for no lock, because it may be dropped. A piece of text may not, because the next one goes on behind it.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, select, update

from omni_jobs.database.statement import Statements
from omni_jobs.database.tables import StageRunRow, encode_json, state_seen
from omni_jobs.jobs.values import ProgressReport, TextPiece
from omni_jobs.states import StageRunState

_sql = Statements(__file__)
_INSERT_PIECE = _sql.bulk("insert_piece_if_watched", "stage_run attempt start stop text")

MOST_TEXT = 64 << 10
"""Characters of a text that stand in a progress, the last ones: each report writes them all."""

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


def report_progress(tx: Connection, reports: Sequence[ProgressReport], pieces: Sequence[TextPiece] = ()) -> None:
    """Record these progress reports. Drop those of attempts that no longer run or whose rows are locked.

    Keep the pieces of text as well, but those of jobs that are not watched any more.
    """
    _keep(tx, pieces)
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
                        "text": None if report.text is None else report.text[-MOST_TEXT:],
                        "resumed_at": report.resumed_at,
                        **({} if report.chars is None else {"chars": report.chars}),
                        **({} if report.load_s is None else {"load_s": round(report.load_s, 4)}),
                        **({} if report.picture is None else {"picture": report.picture}),
                    },
                }
                for report in reports
            ],
        )


def _keep(tx: Connection, pieces: Sequence[TextPiece]) -> None:
    longest: dict[tuple[int, int, int], TextPiece] = {}  # PostgreSQL refuses to write a row twice
    for piece in pieces:
        key = piece.stage_run_id, piece.attempt, piece.start
        if key not in longest or len(piece.text) > len(longest[key].text):
            longest[key] = piece
    rows = [(*key, piece.start + len(piece.text), encode_json(piece.text)) for key, piece in sorted(longest.items())]
    _INSERT_PIECE.run(tx, rows)
