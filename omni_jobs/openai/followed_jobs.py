"""``FollowedJobs``: the jobs of one request, as its client follows them."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from omni_jobs.http.places import Connection
from omni_jobs.http.tenant_threads import TenantThreads
from omni_jobs.jobs import Glance, Jobs
from omni_jobs.openai.client_names import NameOf
from omni_jobs.views import JobView
from omni_jobs.watch.watch import Watch, WatchPlace

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class FollowedJobs:
    """The jobs of one request, in the order of what it asked for.

    ids               of one job at least
    tenant            whom the client ``sees``
    connection        the client's
    reserve           reserves the request's place among those that watch, unless it has one
    artifact_threads  those on which artifacts are read
    name_of           the client's names for the fields of the jobs' requests
    """

    ids: Sequence[str]
    jobs: Jobs
    watch: Watch
    tenant: str | None
    connection: Connection | None
    reserve: Callable[[], WatchPlace]
    artifact_threads: TenantThreads
    name_of: NameOf

    @property
    def has_left(self) -> bool:
        """Whether the client has closed its connection."""
        return self.connection is not None and self.connection.has_left

    def see(self, job_id: str) -> JobView:
        """Return a job as the client may see it. Call this on a thread."""
        return self.jobs.get(job_id, self.tenant)

    async def on_artifact_thread(self, work: Callable[[], T], *, goes_on: bool = False) -> T:
        """Call ``work``, which reads artifacts, on a thread of those that the tenant may use for that.

        ``goes_on``: it belongs to an answer that has begun. Else it raises ServerBusy if too many of the tenant wait.
        """
        return await self.artifact_threads.run(self.tenant, work, goes_on=goes_on)

    def changes(self, job_id: str) -> AsyncGenerator[Glance, None]:
        """Return the changes of a job and its stage runs, as ``Watch`` tells them to the client."""
        return self.watch.changes(job_id, self.reserve(), with_runs=True)
