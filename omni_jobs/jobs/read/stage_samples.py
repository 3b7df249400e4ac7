"""The samples of the stages over time, for charts and percentiles. No stage run is read for them."""

import math
from collections.abc import Sequence
from typing import Final, Literal

from sqlalchemy import Connection, select

from omni_jobs.database.clock import now
from omni_jobs.database.seen_tables import SamplingRow, StageSampleRow
from omni_jobs.errors import InvalidRequest
from omni_jobs.jobs.keep.stage_samples import StageSample, sample_of

MOST_SAMPLES: Final = 100_000
"""The most samples of one answer."""


def stage_samples(
    tx: Connection,
    step_s: Literal[10, 300, 7200],
    since: float,
    until: float,
    *,
    pipeline: str | None = None,
    stage: str | None = None,
) -> Sequence[StageSample]:
    """Return the samples that began in [since, until), seconds since 1970, by pipeline, stage and time.

    ``step_s``: those of 10 s, kept for a day, or of 5 minutes or 2 hours, kept for 30 days. ``pipeline`` and ``stage``:
    None: any.
    A time without a sample is one in which the stage had neither work nor a worker, or nobody sampled. Add samples up
    (``plus``) and ask the sum's histograms for percentiles. Raises InvalidRequest for more than MOST_SAMPLES, and for a
    name that no stage can have.
    """
    row = StageSampleRow
    conditions = [row.step_s == step_s, row.at >= math.ceil(since), row.at < math.ceil(until)]
    for name, value, column in (("pipeline", pipeline, row.pipeline), ("stage", stage, row.stage)):
        if value is not None and not value.isprintable():
            raise InvalidRequest("not a printable name", field=name)
        if value is not None:
            conditions.append(column == value)
    query = select(row.__table__).where(*conditions).order_by(row.pipeline, row.stage, row.at)
    found = tx.execute(query.limit(MOST_SAMPLES + 1)).all()
    if len(found) > MOST_SAMPLES:
        raise InvalidRequest(f"more than {MOST_SAMPLES} samples: ask for less time, or for one stage", field="since")
    return [sample_of(each) for each in found]


def sampled_s_ago(tx: Connection) -> float | None:
    """Return how many seconds ago the last sample was taken, by the database's clock; None: none ever was."""
    ago: float | None = tx.execute(select(now() - SamplingRow.at)).scalar_one_or_none()
    return ago
