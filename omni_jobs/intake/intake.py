"""``Intake``: the one way by which jobs are submitted.

    fetch media → admit → take room → store media → write in a group commit → ring

A door makes ``Submission``s of what came to it, and its answer of the intake's ``SubmitResult``s. Each step returns a
list in the order of the submissions. An error in it stands for one that was refused, and the later steps pass it on, so
that it disturbs no other.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from anyio.to_thread import run_sync

from omni_jobs.broker.relay import Relay
from omni_jobs.errors import (
    DatabaseUnavailable,
    IdempotencyKeyReused,
    MissingScope,
    OmniJobsError,
    StorageError,
    StorageUnavailable,
    VersionChanged,
)
from omni_jobs.intake.admissions import Admissions
from omni_jobs.intake.group_commit import GroupCommit
from omni_jobs.intake.intake_observer import IntakeObserver
from omni_jobs.intake.kept_errors import without_frames
from omni_jobs.intake.media_fetches import MediaFetches
from omni_jobs.intake.room import Room
from omni_jobs.jobs import ActionStep, ActionTurn, Jobs, SubmitResult
from omni_jobs.logs.texts import admitted
from omni_jobs.new_job import NewJob, Origin
from omni_jobs.observers import Observers
from omni_jobs.priority import Priority
from omni_jobs.requests import Fork, Submission, other_version, submission_of
from omni_jobs.settings import Settings
from omni_jobs.states import JobState
from omni_jobs.storage import ObjectStore, input_key
from omni_jobs.tenants.tenant_limits import NO_LIMITS, Limits
from omni_jobs.tracing.traceparent import of_request
from omni_jobs.views import JobView

logger = logging.getLogger(__name__)

WhenReady = Callable[[Sequence[NewJob | OmniJobsError]], Awaitable[None]]
"""Takes jobs that have room, and are about to be stored, or their refusals, in the order of their submissions."""


async def _all_go_on(jobs: Sequence[NewJob | OmniJobsError]) -> None:
    """Refuse none of the jobs that have room."""


class Intake:
    """Submits, retries and forks the jobs of one API process. For one event loop; ``close`` it."""

    def __init__(
        self,
        settings: Settings,
        fetches: MediaFetches,
        admissions: Admissions,
        jobs: Jobs,
        store: ObjectStore,
        relay: Relay,
        observers: Iterable[IntakeObserver] = (),
        new_span: Callable[[str | None], str] | None = None,
    ) -> None:
        """Start the thread that writes jobs. ``close`` leaves the given parts open.

        ``new_span`` names the span of a submit, in that of its client, if it has one. Without it that is the client's.
        """
        self._fetches = fetches
        self._admissions = admissions
        self._jobs = jobs
        self._store = store
        self._relay = relay
        self._commits = GroupCommit(jobs.submit_all, relay.ring)
        self._observers = Observers(observers)
        self._new_span = new_span
        self._room = Room(settings, jobs)
        self.backlog = self._room.backlog

    async def close(self) -> None:
        """Write the jobs that wait, then end the thread that writes."""
        await run_sync(self._commits.close)
        await self.backlog.close()

    async def submit(self, submission: Submission) -> SubmitResult:
        """Submit one job, and return its result. Raises the error in its place, and the errors of ``submit_many``."""
        [result] = await self.submit_many([submission], wait_for_decoders=False)
        if isinstance(result, OmniJobsError):
            raise result
        return result

    async def submit_many(
        self,
        submissions: Sequence[Submission],
        *,
        wait_for_decoders: bool = True,
        when_ready: WhenReady = _all_go_on,
    ) -> list[SubmitResult | OmniJobsError]:
        """Submit jobs. Return a result or an error for each, in their order.

        The error is that of a refusal. DatabaseUnavailable: the job may exist all the same. StorageUnavailable or
        StorageFull: its media could not be stored, nor those of the submissions after it, which are not tried.

        ``when_ready`` is awaited before anything of a job is stored. What it raises refuses all of them. Submissions
        whose results are known without it may be missing.

        Raises DatabaseUnavailable before any job is written. Raises DecodersUnavailable if too many submissions wait
        for decoders already, unless these ``wait_for_decoders``.
        """
        began = time.monotonic()
        requests = admitted.set(tuple(each.request for each in submissions))

        def tell(results: Sequence[SubmitResult | OmniJobsError]) -> None:
            self._observers.tell(IntakeObserver.submitted, submissions, results, time.monotonic() - began)

        try:
            results = await self._submit_many(submissions, wait_for_decoders, when_ready)
        except OmniJobsError as error:
            tell([error] * len(submissions))
            raise  # whoever logs the error hides their texts, too
        admitted.reset(requests)  # they may be large, and the job may be waited for
        tell(results)
        return results

    async def _submit_many(
        self, submissions: Sequence[Submission], wait_for_decoders: bool, when_ready: WhenReady
    ) -> list[SubmitResult | OmniJobsError]:
        repeated = await self._repeated(submissions) if self._fetches.is_on else {}
        if repeated:
            rest = [each for number, each in enumerate(submissions) if number not in repeated]
            others = iter(await self._submit_new(rest, wait_for_decoders, when_ready) if rest else ())
            return [repeated.get(number) or next(others) for number in range(len(submissions))]
        return await self._submit_new(submissions, wait_for_decoders, when_ready)

    async def _repeated(self, submissions: Sequence[Submission]) -> dict[int, SubmitResult | OmniJobsError]:
        """Return the results of those submissions whose keys name jobs already, if they name media by URL.

        Nothing is fetched for them, because their media may be gone. Raises DatabaseUnavailable.
        """
        keys = {
            number: (each.caller.tenant, each.idempotency_key)
            for number, each in enumerate(submissions)
            if each.idempotency_key is not None and each.request.links
        }
        known = await run_sync(self._jobs.known_submits, set(keys.values())) if keys else {}
        results: dict[int, SubmitResult | OmniJobsError] = {}
        for number, key in keys.items():
            if key in known:
                job_id, digest = known[key]
                is_same = digest == submissions[number].digest
                results[number] = (
                    SubmitResult(job_id, created=False) if is_same else IdempotencyKeyReused(field="Idempotency-Key")
                )
        return results

    async def _submit_new(
        self, submissions: Sequence[Submission], wait_for_decoders: bool, when_ready: WhenReady
    ) -> list[SubmitResult | OmniJobsError]:
        limits = {each.caller.tenant: each.caller.limits for each in submissions}
        with ExitStack() as stack:
            ready = await self._fetches.fetch_all(submissions, stack)
            admitted = await self._admissions.admit(ready, wait_for_decoders=wait_for_decoders)
            taken = await self._room.take(admitted, limits, stack)
            await when_ready(taken.jobs)
            jobs = await self._with_media(taken.jobs)
            results = await self._write(jobs)
            for job, result in zip(jobs, results, strict=True):
                if isinstance(job, NewJob) and _may_be_made(result):
                    taken.made(job)
        return results

    async def retry(
        self,
        job_id: str,
        from_stage: str | None,
        tenant: str | None = None,
        limits: Limits = NO_LIMITS,
        *,
        version: str | None = None,
        may_be_high: bool = True,
        by: str | None = None,
        states: Collection[JobState] | None = None,
        as_step: tuple[ActionTurn, ActionStep] | None = None,
    ) -> None:
        """Queue an ended job again: its stages that did not succeed, ``from_stage``, and all that follow these.

        ``version``: the one of its pipeline on which they run; None: the job's own. ``tenant`` is the one that asks,
        and has ``limits``; None may retry any job. ``may_be_high``: whether it may run a job of high priority. ``by``
        is the actor whom the audit names, ``states`` those in one of which the job is to be, and ``as_step`` the step
        of an action that this is. Raises MissingScope, LimitReached, VersionDraining, and the errors of ``Jobs.retry``.
        """
        try:
            retry = partial(self._jobs.retry, job_id, from_stage, by=by, states=states, as_step=as_step)
            await self._retry(job_id, tenant, limits, may_be_high, retry, version)
        except OmniJobsError as error:
            self._observers.tell(IntakeObserver.retried, job_id, error)
            raise
        self._observers.tell(IntakeObserver.retried, job_id, None)

    async def _retry(
        self,
        job_id: str,
        tenant: str | None,
        limits: Limits,
        may_be_high: bool,
        retry: Callable[..., set[str]],
        version: str | None,
    ) -> None:
        def do_retry() -> set[str]:
            if version is None or version == job.pipeline_version:
                self._check_takes_jobs(job)
                return retry(artifacts=self._artifacts_of(job, job.pipeline_version))
            origin = self._jobs.origin(job_id, tenant)
            onto = other_version(origin, self._admissions.pipelines, version)
            return retry(artifacts=self._artifacts_of(job, version), onto=onto)

        job = await run_sync(self._jobs.get, job_id, tenant)
        if job.priority is Priority.HIGH and not may_be_high:
            raise MissingScope("a high job takes a key with the scope priority", field="priority")
        with ExitStack() as stack:
            reservation = await self._room.take_for_retry(job, limits, stack)
            queues = await run_sync(do_retry)
            reservation.taken = 1
        self._relay.ring(queues)

    def _check_takes_jobs(self, job: JobView) -> None:
        """Raise VersionDraining where the job's own version takes no new jobs: its workers may have gone."""
        pipelines = self._admissions.pipelines
        own = pipelines.find(f"{job.pipeline}@{job.pipeline_version}")
        with suppress(VersionChanged):  # this server has another file than the job, which says nothing of its workers
            if own is not None:
                pipelines.check_takes_jobs(own)

    def _artifacts_of(self, job: JobView, version: str) -> Mapping[str, str]:
        """Return which stage makes each artifact of a job in this version, as far as its pipeline is served.

        Call this on a thread.
        """
        pipelines = self._admissions.pipelines
        pipeline = pipelines.version_or_newest(job.pipeline, version)
        whole = pipeline is not None and pipelines.broken(pipeline.reference) is None
        return pipeline.artifacts_of(job.modalities) if pipeline is not None and whole else {}

    async def fork(self, job_id: str, fork: Fork) -> SubmitResult:
        """Submit a fork of this job, and return its result.

        Raises NotFound for a job that the caller does not see, Conflict for stages that cannot be taken over, and the
        errors of ``submit``.
        """
        caller = fork.caller
        if (repeated := await self._repeated_fork(job_id, fork)) is not None:
            return repeated
        origin = await run_sync(self._jobs.origin, job_id, caller.sees)
        submission = await run_sync(submission_of, fork, origin, self._admissions.pipelines)
        began = time.monotonic()
        try:
            result = await self._fork(submission, fork, origin)
        except OmniJobsError as error:
            self._observers.tell(IntakeObserver.submitted, [submission], [error], time.monotonic() - began)
            raise
        self._observers.tell(IntakeObserver.submitted, [submission], [result], time.monotonic() - began)
        return result

    async def _repeated_fork(self, job_id: str, fork: Fork) -> SubmitResult | None:
        """Return the result of a fork whose key names a job already; None: none does.

        The job that it was forked from may be gone meanwhile. Raises IdempotencyKeyReused.
        """
        if fork.idempotency_key is None:
            return None
        key = (fork.caller.tenant, fork.idempotency_key)
        known = await run_sync(self._jobs.known_submits, {key})
        if key not in known:
            return None
        known_id, digest = known[key]
        if digest != fork.digest_of(job_id):
            raise IdempotencyKeyReused(field="Idempotency-Key")
        return SubmitResult(known_id, created=False)

    async def _fork(self, submission: Submission, fork: Fork, origin: Origin) -> SubmitResult:
        limits = {submission.caller.tenant: submission.caller.limits}
        with ExitStack() as stack:
            admitted = await self._admissions.admit_fork(submission, fork, origin)
            taken = await self._room.take([admitted], limits, stack)
            [job] = taken.jobs
            if isinstance(job, OmniJobsError):
                raise job
            result = await run_sync(lambda: self._jobs.fork(self._traced(job), by=fork.caller.actor))
            if result.created:
                taken.made(job)
        self._relay.ring(result.queues)
        return result

    # Store media.

    async def _with_media(self, admitted: Sequence[NewJob | OmniJobsError]) -> list[NewJob | OmniJobsError]:
        """Return the jobs to write, once their media are in the object store; an error where they cannot be stored.

        After the first such error no other media are tried, because each try of a store that is away takes seconds.
        """
        jobs: list[NewJob | OmniJobsError] = []
        outage: OmniJobsError | None = None
        for each in admitted:
            if isinstance(each, OmniJobsError) or not each.unstored:
                jobs.append(each)
            elif outage is not None:
                jobs.append(type(outage)(outage.message))
            else:
                try:
                    jobs.append(await run_sync(self._store_media, each))
                except StorageUnavailable as error:
                    outage = without_frames(error)
                    jobs.append(outage)
        return jobs

    def _store_media(self, job: NewJob) -> NewJob:
        """Store the media of a job, and return it with what its row says of them."""
        stored = []
        for number, medium in enumerate(job.unstored):
            ref = self._store.put(input_key(job.job_id, number), [medium.data], media_type=medium.media_type)
            stored.append({**ref.model_dump(), "media_type": medium.media_type})
        return replace(job, media=stored, unstored=())

    def _delete_media(self, media: Sequence[Mapping[str, Any]]) -> None:
        """Delete media of jobs that were not written. Media that cannot be deleted now expire as orphans."""
        try:
            self._store.delete([medium["key"] for medium in media])
        except StorageError as error:
            logger.warning("%d media are left behind: %s", len(media), error)

    # Write, and ring.

    def _traced(self, job: NewJob) -> NewJob:
        """Return the job with the span of its submit where spans are made, else with that of its client, if any."""
        of_client = of_request.get()
        traceparent = of_client if self._new_span is None else self._new_span(of_client)
        return job if traceparent is None else replace(job, traceparent=traceparent)

    async def _write(self, jobs: Sequence[NewJob | OmniJobsError]) -> list[SubmitResult | OmniJobsError]:
        """Write the jobs in one transaction with those of other callers, ring for them, and return their results."""
        wanted = [self._traced(job) for job in jobs if isinstance(job, NewJob)]
        await asyncio.sleep(0)  # requests that came at once hand their jobs over at once: one transaction writes them
        written = await asyncio.wrap_future(self._commits.submit(wanted)) if wanted else []
        unused: list[Mapping[str, Any]] = []
        for job, result in zip(wanted, written, strict=True):
            if not _may_be_made(result):
                unused += job.media
        if unused:
            await run_sync(self._delete_media, unused)
        results = iter(written)
        return [job if isinstance(job, OmniJobsError) else next(results) for job in jobs]


def _may_be_made(result: SubmitResult | OmniJobsError) -> bool:
    """Return whether a submit has made its job, or may have: the connection may break behind a COMMIT."""
    return isinstance(result, DatabaseUnavailable) or (isinstance(result, SubmitResult) and result.created)
