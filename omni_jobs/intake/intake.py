"""``Intake``: the one door for a job.

    admit → reserve a place in the backlog → store media → write (grouped) → wake

Every façade comes through it: a façade turns its body into a ``SubmitRequest`` and a ``SubmitResult`` into its answer.
Each step takes a list in the order of the requests, and returns such a list. An error in it stands for a request that
was refused, and the later steps pass it on: a request that is refused disturbs no other.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync

from omni_jobs.errors import DatabaseUnavailable, InvalidRequest, ModelMissing, OmniJobsError
from omni_jobs.intake.backlog import Backlog, Reservation
from omni_jobs.intake.group_commit import GroupCommit
from omni_jobs.intake.job_media import delete_media, store_media
from omni_jobs.intake.lanes import Lanes
from omni_jobs.intake.new_job import new_job
from omni_jobs.intake.renderer_loads import RendererLoads
from omni_jobs.intake.submit_request import SubmitRequest
from omni_jobs.jobs import Hint, Jobs, NewJob, SubmitResult, new_job_id
from omni_jobs.media.wall import MediaWall
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.prompts import Renderers
from omni_jobs.requests import AdmittedRequest, ParsedRequest, admit, check_deadline, parse
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore

if TYPE_CHECKING:
    from omni_jobs.broker.relay import Relay

__all__ = ["Intake"]


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A request whose body is a JobRequest by its form."""

    request: SubmitRequest
    body: ParsedRequest

    @property
    def pipeline(self) -> str:
        return self.body.request.model

    @property
    def has_media(self) -> bool:
        return not self.body.is_text and self.body.request.messages is not None


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A request that can be run."""

    request: SubmitRequest
    job: AdmittedRequest

    @property
    def scope(self) -> tuple[str, str]:
        return self.job.pipeline.name, self.request.tenant


class Intake:
    """Submits jobs. For one event loop; ``start`` and ``close`` it."""

    def __init__(
        self,
        settings: Settings,
        pipelines: Pipelines,
        renderers: Renderers,
        wall: MediaWall,
        jobs: Jobs,
        store: ObjectStore,
        relay: Relay,
    ) -> None:
        """``pipelines`` are those that take jobs. The caller closes what it gives."""
        self._settings = settings
        self._pipelines = pipelines
        self._renderers = renderers
        self._wall = wall
        self._jobs = jobs
        self._store = store
        self._relay = relay
        self._lanes = Lanes(wall.capacity)
        self._loads = RendererLoads(renderers, pipelines)
        self._commits = GroupCommit(jobs.submit_all, relay.send)
        self.backlog = Backlog(
            jobs.backlog, per_pipeline=settings.max_queued_jobs, per_tenant=settings.max_queued_jobs_per_tenant
        )

    def start(self) -> None:
        """Start the thread that writes jobs."""
        self._commits.start()

    async def close(self) -> None:
        """Write what waits, then end the thread."""
        await run_sync(self._commits.close)
        await self.backlog.close()

    async def submit(self, request: SubmitRequest) -> SubmitResult:
        """Submit one job. Raises the error that it is refused with, and the errors of ``submit_many``."""
        [result] = await self.submit_many([request])
        if isinstance(result, OmniJobsError):
            raise result
        return result

    async def submit_many(self, requests: Sequence[SubmitRequest]) -> list[SubmitResult | OmniJobsError]:
        """Submit jobs. Return a result or the error of the refusal for each, in their order.

        Raises DatabaseUnavailable, StorageUnavailable and StorageFull. Some of the jobs may exist all the same then.
        """
        admitted = await self._admit(requests)
        await self.backlog.refresh()
        with ExitStack() as stack:
            reservations = self._reserve(admitted, stack)
            accepted = await self._refuse_beyond(admitted, reservations)
            jobs = await self._store_media(accepted)
            results = await self._write(requests, jobs)
            for each, result in zip(admitted, results, strict=True):
                if isinstance(each, _Admitted) and isinstance(result, SubmitResult) and result.created:
                    reservations[each.scope].taken += 1
        return results

    async def retry(self, job_id: str, from_stage: str | None) -> None:
        """Send a job that has ended on again, from a stage on. Raises what ``Jobs.retry`` raises, and TooManyJobs."""
        job = await run_sync(self._jobs.get, job_id)
        await self.backlog.refresh()
        with self.backlog.reserve(job.pipeline, job.tenant) as reservation:
            if reservation.refusal is not None:
                raise reservation.refusal
            hints: Sequence[Hint] = await run_sync(self._jobs.retry, job_id, from_stage)
            reservation.taken = 1
        self._relay.send(hints)

    # Admit.

    async def _admit(self, requests: Sequence[SubmitRequest]) -> list[_Admitted | OmniJobsError]:
        """Check the requests whole. Texts are admitted together, and each request with media apart."""
        parsed = await self._lanes.parse(requests, partial(self._parse_all, requests))
        missing = await self._load_renderers({each.pipeline for each in parsed if isinstance(each, _Parsed)})
        texts = [each for each in parsed if isinstance(each, _Parsed) and not each.has_media]
        admitted = {}
        if texts:
            admit_texts = partial(self._admit_all, texts, missing)
            tokenizes = any(self._has_model(each.pipeline) for each in texts)
            found = await self._lanes.admit([each.request for each in texts], admit_texts, tokenizes=tokenizes)
            admitted = dict(zip(map(id, texts), found, strict=True))
        for each in parsed:
            if isinstance(each, _Parsed) and each.has_media:
                admit_one = partial(self._admit_all, [each], missing)
                [admitted[id(each)]] = await self._lanes.admit_media(admit_one, waits=len(requests) > 1)
        return [each if isinstance(each, OmniJobsError) else admitted[id(each)] for each in parsed]

    def _parse_all(self, requests: Sequence[SubmitRequest]) -> list[_Parsed | OmniJobsError]:
        parsed: list[_Parsed | OmniJobsError] = []
        for request in requests:
            try:
                parsed.append(_Parsed(request, parse(request.body, self._settings)))
            except OmniJobsError as error:
                parsed.append(_without_frames(error))
        return parsed

    async def _load_renderers(self, pipelines: set[str]) -> dict[str, OmniJobsError]:
        """Wait until the pipelines' renderers are loaded. Return the errors of those that cannot be."""
        missing: dict[str, OmniJobsError] = {}
        for pipeline in pipelines:
            try:
                await self._loads.ready(pipeline)
            except ModelMissing as error:
                missing[pipeline] = _without_frames(error)
        return missing

    def _has_model(self, name: str) -> bool:
        pipeline = self._pipelines.get(name)
        return pipeline is not None and pipeline.model is not None

    def _admit_all(
        self, parsed: Sequence[_Parsed], missing: Mapping[str, OmniJobsError]
    ) -> list[_Admitted | OmniJobsError]:
        admitted: list[_Admitted | OmniJobsError] = []
        for each in parsed:
            try:
                admitted.append(missing.get(each.pipeline) or _Admitted(each.request, self._admit_one(each)))
            except OmniJobsError as error:
                admitted.append(_without_frames(error))
        return admitted

    def _admit_one(self, parsed: _Parsed) -> AdmittedRequest:
        admitted = admit(
            parsed.body,
            self._pipelines,
            self._settings,
            self._renderers,
            prompt_embeds=parsed.request.prompt_embeds,
            wall=self._wall,
        )
        if admitted.expires_at is not None and parsed.request.expires_in_s is not None:
            raise InvalidRequest("given, and Cancel-After as well", field="expires_at")
        return admitted

    # Reserve.

    def _reserve(
        self, admitted: Sequence[_Admitted | OmniJobsError], stack: ExitStack
    ) -> dict[tuple[str, str], Reservation]:
        """Reserve room for all, as far as there is room, by pipeline and tenant."""
        wanted = Counter(each.scope for each in admitted if isinstance(each, _Admitted))
        return {scope: stack.enter_context(self.backlog.reserve(*scope, jobs)) for scope, jobs in wanted.items()}

    async def _refuse_beyond(
        self,
        admitted: Sequence[_Admitted | OmniJobsError],
        reservations: Mapping[tuple[str, str], Reservation],
    ) -> list[_Admitted | OmniJobsError]:
        """Refuse requests whose deadline has passed or lies too far ahead, and requests beyond the reserved room.

        A request whose idempotency key names a job passes all the same, because it makes no job.
        """
        left = {scope: reservation.granted for scope, reservation in reservations.items()}
        accepted: list[_Admitted | OmniJobsError] = []
        for each in admitted:
            refusal: OmniJobsError | None = None
            if isinstance(each, _Admitted):
                left[each.scope] -= 1
                has_room = left[each.scope] >= 0
                refusal = _deadline_refusal(each.job) or (None if has_room else reservations[each.scope].refusal)
                if refusal is not None and await self._is_known(each.request):
                    refusal = None
            accepted.append(each if refusal is None else _without_frames(refusal))
        return accepted

    async def _is_known(self, request: SubmitRequest) -> bool:
        key = request.idempotency_key
        return key is not None and await run_sync(self._jobs.is_known, request.tenant, key)

    # Store, write.

    async def _store_media(self, accepted: Sequence[_Admitted | OmniJobsError]) -> list[NewJob | OmniJobsError]:
        """Put the media of the jobs that are to be into the object store."""
        if any(isinstance(each, _Admitted) and each.job.media for each in accepted):
            return await run_sync(self._new_jobs, accepted)
        return self._new_jobs(accepted)

    def _new_jobs(self, accepted: Sequence[_Admitted | OmniJobsError]) -> list[NewJob | OmniJobsError]:
        jobs: list[NewJob | OmniJobsError] = []
        for each in accepted:
            if isinstance(each, OmniJobsError):
                jobs.append(each)
                continue
            job_id = new_job_id()
            media = store_media(job_id, each.job.media, self._store)
            request = each.request
            jobs.append(new_job(job_id, each.job, media, tenant=request.tenant, expires_in_s=request.expires_in_s))
        return jobs

    async def _write(
        self, requests: Sequence[SubmitRequest], jobs: Sequence[NewJob | OmniJobsError]
    ) -> list[SubmitResult | OmniJobsError]:
        """Write the jobs in one transaction with those of other callers, and publish their hints."""
        keyed = [
            (job, request.idempotency_key)
            for job, request in zip(jobs, requests, strict=True)
            if isinstance(job, NewJob)
        ]
        if not keyed:
            return [job for job in jobs if isinstance(job, OmniJobsError)]
        await asyncio.sleep(0)  # requests that came at once hand their jobs over at once: one transaction writes them
        written = await asyncio.wrap_future(self._commits.submit(keyed))
        unused: list[Mapping[str, Any]] = []
        for (job, _), result in zip(keyed, written, strict=True):
            if isinstance(result, DatabaseUnavailable):
                raise result
            if job.media and (isinstance(result, OmniJobsError) or not result.created):
                unused += job.media
        if unused:
            await run_sync(delete_media, unused, self._store)
        results = iter(written)
        return [job if isinstance(job, OmniJobsError) else next(results) for job in jobs]


def _deadline_refusal(admitted: AdmittedRequest) -> InvalidRequest | None:
    try:
        if admitted.expires_at is not None:
            check_deadline(admitted.expires_at, time.time())
    except InvalidRequest as error:
        return error
    return None


def _without_frames(error: OmniJobsError) -> OmniJobsError:
    """Return the error, fit to be kept in a list.

    The frames of its traceback, and of the error that it was raised for, lead to that list. Such a reference cycle
    would keep the whole bulk in memory until the garbage collector comes.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
