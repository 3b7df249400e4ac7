"""The versions of pipelines: the file that each was when it was first seen, and which take no new jobs.

A version is known by its number to people and by its digest to rows. Whoever starts with a file tells its version
here, so that two files never pass for one version. A version that is *draining* takes no new jobs; those that it has
go on, and once none is left its workers may go.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, exists, func, or_, select, update

from omni_jobs.database.audit import Act
from omni_jobs.database.clock import now
from omni_jobs.database.insert import insert_unless_there
from omni_jobs.database.seen_tables import PipelineVersionRow
from omni_jobs.database.tables import JobRow, WorkerRow, state_is
from omni_jobs.errors import NotFound, VersionChanged
from omni_jobs.identity import PipelineId
from omni_jobs.states import JobState

_UNFINISHED = (JobState.QUEUED, JobState.IN_PROGRESS, JobState.CANCELLING)
_is_unfinished = or_(*(state_is(JobRow.state, state) for state in _UNFINISHED))


class KnownVersion(NamedTuple):
    """A version of a pipeline that some server or worker has had. Times are seconds since 1970."""

    pipeline: PipelineId
    version: str
    first_seen_at: float
    draining_at: float | None  # since when it takes no new jobs; None: it takes them

    @property
    def reference(self) -> str:
        """NAME@VERSION, as ``Pipeline.reference``."""
        return f"{self.pipeline.name}@{self.version}"

    def changed_to(self, pipeline: PipelineId) -> VersionChanged:
        """Return the error of a file that has this version's number, and is another one."""
        return VersionChanged(
            f"version {self.version} of {pipeline.name} was another file (digest {self.pipeline.digest[:16]}; this one "
            f"has {pipeline.digest[:16]}), which jobs or workers still have: raise `version`, or put the file back",
            field="version",
        )


class VersionWork(NamedTuple):
    """What is left of a version: its jobs that have not ended, by state, and the workers that serve it."""

    jobs: dict[JobState, int]
    workers: int


def known_versions(tx: Connection) -> list[KnownVersion]:
    """Return all versions that were ever told, by pipeline and the time when they were first seen."""
    row = PipelineVersionRow
    columns = (row.pipeline, row.version, row.digest, row.first_seen_at, row.draining_at)
    found = tx.execute(select(*columns).order_by(row.pipeline, row.first_seen_at, row.version))
    return [_known(*each) for each in found]


def tell_versions(tx: Connection, versions: Sequence[tuple[PipelineId, str]]) -> list[KnownVersion]:
    """Note versions, each with its number, that are not known yet; return all that are known then.

    A known version whose file was another one, and which has neither unfinished jobs nor workers, is the new file from
    now on, because nobody can mistake it. Otherwise the old one stays: compare the digests.
    """
    row = PipelineVersionRow
    for pipeline, version in versions:
        insert_unless_there(
            tx, row, pipeline=pipeline.name, version=version, digest=pipeline.digest, first_seen_at=now()
        )
        its_jobs = exists().where(_is_unfinished, JobRow.pipeline == row.pipeline, JobRow.pipeline_digest == row.digest)
        its_workers = exists().where(
            WorkerRow.pipeline == row.pipeline, WorkerRow.pipeline_digest == row.digest, WorkerRow.lease_until > now()
        )
        replace = update(row).where(
            row.pipeline == pipeline.name,
            row.version == version,
            row.digest != pipeline.digest,
            ~its_jobs,
            ~its_workers,
        )
        tx.execute(replace.values(digest=pipeline.digest, first_seen_at=now(), draining_at=None))
    return known_versions(tx)


def set_draining(tx: Connection, reference: str, is_draining: bool, act: Act | None = None) -> KnownVersion:
    """Let a version, by its NAME@VERSION, take no new jobs, or let it take them again; return how it stands then.

    One that is draining already keeps the time of the first drain. Raises NotFound for a version that is not known.
    """
    known = {each.reference: each for each in known_versions(tx)}
    if reference not in known:
        listed = ", ".join(known) or "none"
        raise NotFound(f"there is no version {reference!r:.140}; known are: {listed}", field="version")
    version = known[reference]
    if (version.draining_at is not None) == is_draining:
        return version
    row = PipelineVersionRow
    is_it = (row.pipeline == version.pipeline.name, row.version == version.version)
    change = update(row).where(*is_it).values(draining_at=now() if is_draining else None)
    draining_at = tx.execute(change.returning(row.draining_at)).scalar_one()
    if act is not None:
        act.note(tx, reference, None)
    return version._replace(draining_at=draining_at)


def version_work(tx: Connection) -> dict[PipelineId, VersionWork]:
    """Return what is left of each version; those of which nothing is left are missing."""
    jobs: dict[PipelineId, dict[JobState, int]] = {}
    for state in _UNFINISHED:
        of_state = (
            select(JobRow.pipeline, JobRow.pipeline_digest, func.count().label("n"))
            .where(state_is(JobRow.state, state))
            .group_by(JobRow.pipeline, JobRow.pipeline_digest)
        )
        for row in tx.execute(of_state):
            jobs.setdefault(PipelineId(row.pipeline, row.pipeline_digest), {})[state] = row.n
    serving = select(WorkerRow.pipeline, WorkerRow.pipeline_digest).where(WorkerRow.lease_until > now())
    workers = Counter(PipelineId(*row) for row in tx.execute(serving))
    return {each: VersionWork(jobs.get(each, {}), workers[each]) for each in {*jobs, *workers}}


def _known(name: str, version: str, digest: str, first_seen_at: float, draining_at: float | None) -> KnownVersion:
    return KnownVersion(PipelineId(name, digest), version, first_seen_at, draining_at)
