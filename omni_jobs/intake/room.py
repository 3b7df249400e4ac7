"""``Room``: room for jobs in the backlog, for the media of unfinished jobs, and for what tenants keep stored.

A request that lacks one of them takes nothing of the others from the requests after it. A request whose idempotency key
names a job takes none, because it makes no job; keys are looked up only where that decides something, all of a group in
one query.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from anyio.to_thread import run_sync

from omni_jobs.errors import InvalidRequest, LimitReached, OmniJobsError, TooMuchMedia, TooMuchStored
from omni_jobs.intake.backlog import Backlog, Reservation
from omni_jobs.intake.byte_room import ByteRoom, BytesLeft
from omni_jobs.intake.kept_errors import without_frames
from omni_jobs.jobs import Jobs
from omni_jobs.jobs.keep import stored_bytes
from omni_jobs.new_job import NewJob
from omni_jobs.requests import check_deadline
from omni_jobs.settings import Settings
from omni_jobs.tenants.tenant_limits import Limits
from omni_jobs.views import JobView

_TenantKey = tuple[str, str]  # a pipeline's name and a tenant

_MEDIA_RETRY_AFTER_S: Final = 5
_STORED_RETRY_AFTER_S: Final = 60  # it frees by the pruner, or by hand


class _Bytes(NamedTuple):
    """What a job brings."""

    media: int
    stored: int  # its media, request, metadata and rows, and what it takes over from another job


_NO_BYTES: Final = _Bytes(0, 0)


class _Left(NamedTuple):
    """What a tenant has of both kinds."""

    media: BytesLeft
    stored: BytesLeft


@dataclass(slots=True)
class TakenRoom:
    """The room of a group of jobs. All bytes, and the places not ``made``, go back with the ``until`` of ``Room.take``.

    jobs  each job that has room, or its error, in their order
    """

    jobs: list[NewJob | OmniJobsError]
    _reservations: Mapping[_TenantKey, Reservation]

    def made(self, job: NewJob) -> None:
        """Note that a job was made."""
        self._reservations[job.pipeline.name, job.tenant].taken += 1


class Room:
    """Takes room for jobs that are submitted or retried, in one API process. For one event loop."""

    def __init__(self, settings: Settings, jobs: Jobs) -> None:
        self._jobs = jobs
        self.backlog = Backlog(
            jobs.backlog,
            per_pipeline=settings.max_queued_jobs,
            per_tenant=settings.max_queued_jobs_per_tenant,
            running=jobs.jobs_in_progress,
        )
        self._media = ByteRoom(jobs.media_bytes, _too_much_media)
        self._stored = ByteRoom(jobs.stored_bytes, _too_much_stored)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of tenants with limits on bytes

    async def take(
        self, admitted: Sequence[NewJob | OmniJobsError], limits: Mapping[str, Limits], until: ExitStack
    ) -> TakenRoom:
        """Take room for these jobs, as far as there is, and give it back as ``until`` closes.

        Close it once the jobs are in SQL. ``limits`` are those of the jobs' tenants. Refused are also jobs whose
        deadline has passed or lies too far ahead. Raises DatabaseUnavailable.
        """
        await self.backlog.refresh()
        reservations = self._reserve(admitted, limits, until)
        late = [None if isinstance(each, OmniJobsError) else _deadline_refusal(each.expires_at) for each in admitted]
        bounded = {
            tenant for tenant, its in limits.items() if its.media_bytes is not None or its.stored_bytes is not None
        }
        known: Collection[tuple[str, str | None]] = ()
        if bounded or any(late) or any(each.refusal is not None for each in reservations.values()):
            known = await self._known(admitted)
        brings = await run_sync(_bytes_of, admitted) if bounded else [_NO_BYTES] * len(admitted)
        granted = {key: reservation.granted for key, reservation in reservations.items()}
        jobs: list[NewJob | OmniJobsError] = []
        async with AsyncExitStack() as looking:
            has_media = any(each.media for each in brings)
            left = {tenant: await self._look(tenant, limits[tenant], has_media, looking) for tenant in sorted(bounded)}
            for each, is_late, its_bytes in zip(admitted, late, brings, strict=True):
                if isinstance(each, OmniJobsError) or (each.tenant, each.idempotency_key) in known:
                    jobs.append(each)
                    continue
                tenant, key = each.tenant, (each.pipeline.name, each.tenant)
                refusal = is_late or (reservations[key].refusal if granted[key] < 1 else None)
                if tenant in left:
                    refusal = refusal or self._refusal(tenant, left[tenant], its_bytes)
                if refusal is None:
                    granted[key] -= 1
                    if tenant in left:
                        self._take(tenant, left[tenant], its_bytes, until)
                jobs.append(each if refusal is None else without_frames(refusal))
        return TakenRoom(jobs, reservations)

    async def take_for_retry(self, job: JobView, limits: Limits, until: ExitStack) -> Reservation:
        """Take room for a job that is to run again, and give it back as ``until`` closes, once it is queued.

        What is stored of it counts already, so it is refused only where its tenant has more than it may have. Raises
        TooManyJobs, TooManyRunningJobs, TooMuchMedia, TooMuchStored and DatabaseUnavailable.
        """
        await self.backlog.refresh()
        reservation = until.enter_context(self.backlog.reserve(job.pipeline, job.tenant, limits=limits))
        media = 0 if limits.media_bytes is None else await run_sync(self._jobs.media_bytes, job.tenant, job.id)
        async with AsyncExitStack() as looking:
            left = await self._look(job.tenant, limits, media > 0, looking)
            refusal = reservation.refusal or self._refusal(job.tenant, left, _Bytes(media, 0))
            if refusal is not None:
                raise refusal
            self._take(job.tenant, left, _Bytes(media, 0), until)
        return reservation

    def _reserve(
        self, admitted: Sequence[NewJob | OmniJobsError], limits: Mapping[str, Limits], until: ExitStack
    ) -> dict[_TenantKey, Reservation]:
        """Reserve room in the backlog for all, as far as there is, by pipeline and tenant."""
        wanted = Counter((each.pipeline.name, each.tenant) for each in admitted if isinstance(each, NewJob))
        return {
            (pipeline, tenant): until.enter_context(self.backlog.reserve(pipeline, tenant, jobs, limits[tenant]))
            for (pipeline, tenant), jobs in wanted.items()
        }

    async def _known(self, admitted: Sequence[NewJob | OmniJobsError]) -> Collection[tuple[str, str | None]]:
        """Return those tenants' keys that name jobs."""
        jobs = [each for each in admitted if isinstance(each, NewJob)]
        keys = {(each.tenant, each.idempotency_key) for each in jobs if each.idempotency_key is not None}
        return await run_sync(self._jobs.known_keys, keys) if keys else ()

    async def _look(self, tenant: str, limits: Limits, has_media: bool, looking: AsyncExitStack) -> _Left:
        """Return what a tenant has of both kinds. Nobody else looks for it until ``looking`` closes."""
        media = limits.media_bytes if has_media else None
        if media is not None or limits.stored_bytes is not None:
            await looking.enter_async_context(self._locks.setdefault(tenant, asyncio.Lock()))
        return _Left(await self._media.look(tenant, media), await self._stored.look(tenant, limits.stored_bytes))

    def _refusal(self, tenant: str, left: _Left, brings: _Bytes) -> LimitReached | None:
        refusal = self._media.refusal(tenant, left.media, brings.media) if brings.media else None
        return refusal or self._stored.refusal(tenant, left.stored, brings.stored)

    def _take(self, tenant: str, left: _Left, brings: _Bytes, until: ExitStack) -> None:
        self._media.take(tenant, left.media, brings.media, until)
        self._stored.take(tenant, left.stored, brings.stored, until)


def _bytes_of(admitted: Sequence[NewJob | OmniJobsError]) -> list[_Bytes]:
    """Return what each of these brings. It encodes the requests, which may be long: call it on a thread."""
    found = []
    for each in admitted:
        if isinstance(each, OmniJobsError):
            found.append(_NO_BYTES)
            continue
        media = sum(len(medium.data) for medium in each.unstored)
        rows = stored_bytes.of_empty_job(len(each.stages), len(each.metadata))
        reused = 0 if each.reuse is None else each.reuse.stored_bytes
        found.append(_Bytes(media, media + rows + reused + stored_bytes.of_request(each.request, each.metadata)))
    return found


def _deadline_refusal(expires_at: float | None) -> InvalidRequest | None:
    try:
        if expires_at is not None:
            check_deadline(expires_at, time.time())
    except InvalidRequest as error:
        return error
    return None


def _too_much_media(tenant: str, left: BytesLeft, wanted: int) -> TooMuchMedia:
    message = f"unfinished jobs of tenant {tenant} have {left.used} bytes of media, and may have {left.limit}"
    return TooMuchMedia(f"{message}: {wanted} more came", retry_after_s=_MEDIA_RETRY_AFTER_S)


def _too_much_stored(tenant: str, left: BytesLeft, wanted: int) -> TooMuchStored:
    message = f"tenant {tenant} keeps {left.used} bytes stored, and may keep {left.limit}: {wanted} more came"
    return TooMuchStored(f"{message}; deleting jobs frees theirs", retry_after_s=_STORED_RETRY_AFTER_S)
