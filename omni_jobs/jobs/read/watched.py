"""Watched jobs: while somebody watches a job's events, its workers write its text as it grows, in pieces.

Of a job that nobody watches, each report of its progress has the end of its text. Pieces cost one row a report instead,
however long the text is, and whoever reads them misses nothing. They are of no use once the job has ended, because then
its result has the text; so they are removed with the note that the job is watched, some time after that is over.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, Text, bindparam, delete, select, update

from omni_jobs.database.one_of import one_of
from omni_jobs.database.statement import Statements, listed
from omni_jobs.database.tables import StageRunRow, TextPieceRow, WatchedJobRow, decode_json, encode_json
from omni_jobs.jobs.life.progress import MOST_TEXT
from omni_jobs.jobs.values import TextPiece, WantedText
from omni_jobs.states import StageRunState

WATCHED_S = 30.0
"""How long a job counts as watched after ``watch``."""
_KEPT_S = 60.0  # then its workers have long seen that it is watched no more

_sql = Statements(__file__)
_ids = bindparam("ids", type_=Text)
_RUNS_IN_PIECES = select(StageRunRow.id, StageRunRow.job_id, StageRunRow.attempt, StageRunRow.progress).where(
    one_of(StageRunRow.job_id, _ids),
    StageRunRow.state != StageRunState.RUNNING.value,
    StageRunRow.progress.is_not(None),
)
_RESULT = select(StageRunRow.stage, StageRunRow.result).where(StageRunRow.id == bindparam("stage_run"))


def watch(tx: Connection, job_ids: Collection[str]) -> None:
    """Note that these jobs are watched for ``WATCHED_S`` from now on, which their workers see within a moment."""
    _sql["watch"].rows(tx, {"ids": listed(sorted(job_ids)), "seconds": str(WATCHED_S)})


def text_pieces(tx: Connection, wanted: Sequence[WantedText]) -> list[TextPiece]:
    """Return the pieces that hold what is wanted, those of an attempt in their order. They may overlap."""
    asked = [
        {"job": each.job_id, "run": each.stage_run_id, "attempt": each.attempt, "have": each.have} for each in wanted
    ]
    rows = _sql["pieces"].rows(tx, {"wanted": encode_json(asked)})
    return [TextPiece(run, attempt, start, decode_json(text)) for run, attempt, start, text in rows]


def text_so_far(tx: Connection, wanted: Sequence[WantedText]) -> Mapping[int, str]:
    """Return the end of the texts that these attempts have written, by stage run id: ``MOST_TEXT`` characters of each.

    What a ``WantedText`` has is left out of its text.
    """
    texts: dict[int, str] = defaultdict(str)
    have = {each.stage_run_id: each.have for each in wanted}
    for piece in text_pieces(tx, wanted):
        known = have[piece.stage_run_id]
        texts[piece.stage_run_id] = (texts[piece.stage_run_id] + piece.text[max(0, known - piece.start) :])[-MOST_TEXT:]
        have[piece.stage_run_id] = max(known, piece.start + len(piece.text))
    return texts


def made_text(tx: Connection, stage_run_id: int) -> str | None:
    """Return the text in the result of a stage run; None if it has none."""
    run = tx.execute(_RESULT, {"stage_run": stage_run_id}).one_or_none()
    if run is None or run.result is None:
        return None
    text = run.result.get("text", run.result.get("texts", {}).get(run.stage))
    return text if isinstance(text, str) else None


def forget_unwatched(tx: Connection) -> int:
    """Remove the pieces of jobs that nobody has watched for a while, at most 500, and return the number of these jobs.

    The end of a text that no result has stays with the progress of its stage run.
    """
    job_ids = [job_id for (job_id,) in _sql["unwatched"].rows(tx, {"seconds": str(_KEPT_S)})]
    if not job_ids:
        return 0
    ended = [run for run in tx.execute(_RUNS_IN_PIECES, {"ids": listed(job_ids)}) if run.progress.get("chars")]
    texts = text_so_far(tx, [WantedText(run.job_id, run.id, run.attempt, 0) for run in ended])
    for run in ended:
        its = {name: value for name, value in run.progress.items() if name != "chars"} | {"text": texts.get(run.id)}
        is_it = (StageRunRow.id == run.id, StageRunRow.attempt == run.attempt)
        is_over = StageRunRow.state != StageRunState.RUNNING.value
        tx.execute(update(StageRunRow).where(*is_it, is_over).values(progress=its))
    tx.execute(delete(TextPieceRow).where(one_of(TextPieceRow.job_id, _ids)), {"ids": listed(job_ids)})
    tx.execute(delete(WatchedJobRow).where(one_of(WatchedJobRow.job_id, _ids)), {"ids": listed(job_ids)})
    return len(job_ids)
