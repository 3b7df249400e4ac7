"""``Calls``: the calls of the HTTP API, each written once, as a generator of steps."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from omni_jobs.client import repeats
from omni_jobs.client.bulk_answers import BULK_PAUSES_S, answers_of_tries
from omni_jobs.client.downloads import Download
from omni_jobs.client.followed import JobEvent, followed
from omni_jobs.client.parsed import parsed
from omni_jobs.client.repeats import answered
from omni_jobs.client.steps import BulkLines, CallStep, HttpRequest, Item, Items, Pause, Steps, Update, done
from omni_jobs.errors import Conflict, InvalidRequest, NotFound, ServerUnavailable
from omni_jobs.files import new_file
from omni_jobs.views import (
    BulkAnswer,
    CalibrationView,
    EventView,
    JobActionView,
    JobView,
    Page,
    PipelineList,
    PipelineVersionList,
    PipelineVersionView,
    PipelineView,
    ScalingView,
    StagePauseView,
    Status,
    UsageReport,
    WorkerDrainView,
)

LONGEST_POLL_S = 20.0  # the server may hold a request until the job ends; proxies end longer ones
UPDATE_FIRST_S, UPDATE_LONGEST_S, UPDATE_GROWTH = 0.1, 1.0, 1.5  # pauses between two polls of a job's progress

ACTION_S = 60.0  # an action on many jobs may take as long, because a group that has begun is ended

JobsFilter = Mapping[str, Any]
"""The fields of a filter of jobs by name: those of ``Calls.list``."""
T = TypeVar("T")
LinesT = TypeVar("LinesT", bound=BulkLines)
StepT = TypeVar("StepT")


@dataclass(frozen=True)
class Calls(Generic[LinesT]):
    """What both clients can do. Their methods are named in :mod:`omni_jobs.client.methods`, and documented here.

    Every call raises the server's error, a class of ``omni_jobs.errors``, and ServerUnavailable if it gave no answer.
    """

    timeout_s: float  # of the client: the silence after which a try of a call fails

    def submit(
        self,
        body: Mapping[str, Any],
        *,
        prompt_embeds: bytes | Path | None = None,
        idempotency_key: str | None = None,
        cancel_after: float | str | None = None,
        within_s: float = 0.0,
    ) -> Steps[JobView]:
        """Submit a job, and return it as it is then, usually queued; with ``within_s`` as it has ended.

        Args:
            body: the body of a chat completion, with ``modalities``.
            prompt_embeds: a safetensors file, or its bytes, with one tensor ``prompt_embeds``: float, [tokens, hidden
                size]. It takes the place of ``messages``.
            idempotency_key: submitting the same body with the same key returns the same job. Without a key each call
                makes one new job.
            cancel_after: seconds, or a text like "15m", after which the job expires unless it has ended.
            within_s: whole seconds, 60 at most: the answer comes once the job has ended, or after these.

        Raises:
            TooManyJobs: if the backlog stays full; its ``retry_after_s`` says when to try again.
            InvalidRequest: if the request is wrong; its ``field`` names the field.
            NotFound: if the server serves no pipeline of the name in ``model``.
            IdempotencyKeyReused: if the idempotency key names a job of another body.
        """
        headers = _submit_headers(idempotency_key or f"client-{uuid.uuid4().hex}", cancel_after)
        if within_s:
            headers["Prefer"] = f"wait={math.ceil(within_s)}"
        if prompt_embeds is None:
            request = HttpRequest("POST", "/v1/jobs", headers=headers, json=body, held_s=within_s)
        else:
            if isinstance(prompt_embeds, Path):
                prompt_embeds = yield from done(prompt_embeds.read_bytes)
            parts = {"request": json.dumps(body).encode(), "prompt_embeds": prompt_embeds}
            request = HttpRequest("POST", "/v1/jobs", headers=headers, files=parts, held_s=within_s)
        return (yield from _view(JobView, request))

    def submit_bulk(
        self,
        lines: LinesT,
        *,
        idempotency_key: str | None = None,
        cancel_after: float | str | None = None,
    ) -> Items[BulkAnswer]:
        """Submit many jobs, one per line. Yield an answer per line, in order, once all lines are sent.

        A line is what ``submit`` takes as its body, or its JSON as bytes or str, without a line end in it.

        Nothing is sent before the iteration begins; an empty line has no answer. The call sets no ``timeout``. Lines
        that can be read again, such as those of a list, are sent again with the same key while that may help, which
        makes only jobs that are missing. An iterator gives its lines once; after an error the caller may send the same
        lines again with the same ``idempotency_key``. ``cancel_after`` applies to each line. AsyncClient takes an
        asynchronous iterable too, and reads any other on its event loop.

        If the server has not handled all lines, the iteration raises its error after the last answer, for example
        DatabaseUnavailable, TooSlow or RequestTooLarge; the message names the last line that it has handled. After any
        other error some jobs may exist as well.
        """
        is_read_once = isinstance(lines, Iterator | AsyncIterator)
        key = idempotency_key if is_read_once or idempotency_key is not None else f"client-{uuid.uuid4().hex}"
        headers = {"Content-Type": "application/jsonl", **_submit_headers(key, cancel_after)}
        request = HttpRequest("POST", "/v1/jobs/bulk", headers=headers, lines=lines, is_streamed=True, held_s=math.inf)
        yield from answers_of_tries(request, () if is_read_once else BULK_PAUSES_S)

    def pipelines(self) -> Steps[Sequence[PipelineView]]:
        """Return the pipelines that the server serves. A submit names one of them as ``model``."""
        return (yield from _view(PipelineList, HttpRequest("GET", "/v1/pipelines"))).pipelines

    def set_paused(self, pipeline: str, stage: str, is_paused: bool) -> Steps[StagePauseView]:
        """Pause or resume a stage, and return its pause, which may be older than this call. Raises NotFound.

        ``pipeline``: NAME for all versions, NAME@VERSION for one alone.
        """
        path = f"/v1/pipelines/{quote(pipeline, safe='')}/stages/{quote(stage, safe='')}"
        request = HttpRequest("POST", f"{path}/{'pause' if is_paused else 'resume'}")
        return (yield from _view(StagePauseView, request))

    def set_drained(self, worker: str, is_drained: bool) -> Steps[WorkerDrainView]:
        """Drain a worker, or let it claim again, and return how it stands; ``worker`` is its id or its slot.

        Raises NotFound.
        """
        request = HttpRequest("POST", f"/v1/workers/{quote(worker, safe='')}/{'drain' if is_drained else 'resume'}")
        return (yield from _view(WorkerDrainView, request))

    def pipeline_versions(self) -> Steps[Sequence[PipelineVersionView]]:
        """Return the versions of all pipelines that some server or worker has had. For a key with the scope admin."""
        request = HttpRequest("GET", "/v1/pipelines/versions")
        return (yield from _view(PipelineVersionList, request)).versions

    def set_draining(self, reference: str, is_draining: bool) -> Steps[PipelineVersionView]:
        """Let a version take no new jobs, by its NAME@VERSION, or let it take them again; return how it stands.

        Raises NotFound.
        """
        path = f"/v1/pipelines/{quote(reference, safe='@')}/{'drain' if is_draining else 'serve'}"
        return (yield from _view(PipelineVersionView, HttpRequest("POST", path)))

    def status(self) -> Steps[Status]:
        """Return how the stages, the workers and the newest jobs stand.

        Workers are shown to operators alone, whose key has the scope admin.
        """
        return (yield from _view(Status, HttpRequest("GET", "/v1/status")))

    def scaling(self, pipeline: str, stage: str, *, wait_s: float = 60.0) -> Steps[ScalingView]:
        """Return how many workers a stage should have, so that what waits now starts within ``wait_s`` seconds.

        ``pipeline``: NAME@VERSION, or NAME for the newest version that takes jobs.
        """
        params = {"pipeline": pipeline, "stage": stage, "wait_s": str(wait_s)}
        return (yield from _view(ScalingView, HttpRequest("GET", "/v1/scaling", params=params)))

    def calibrations(self) -> Steps[Sequence[CalibrationView]]:
        """Return how many estimates of each stage's waits have held; stages without any are left out."""
        return (yield from _view(list[CalibrationView], HttpRequest("GET", "/v1/estimates")))

    def get(self, job_id: str, *, within_s: float = 0.0) -> Steps[JobView]:
        """Return a job as it is now; with ``within_s``, once it has ended or after these seconds. Raises NotFound."""
        return (yield from _view(JobView, _look(job_id, within_s)))

    def list(
        self,
        *,
        limit: int = 20,
        cursor: str | None = None,
        status: str | None = None,
        pipeline: str | None = None,
        error_code: str | None = None,
        brief: bool = False,
        stage: str | None = None,
        metadata: Mapping[str, str] | None = None,
        created_after: datetime | str | None = None,
        created_before: datetime | str | None = None,
        tenant: str | None = None,
    ) -> Steps[Page]:
        """Return a page of jobs that match all filters, the newest first.

        The ``next_cursor`` of a page is the ``cursor`` of the next page. A page holds fewer than ``limit`` jobs, or
        none, if their results are large or few of many jobs match: only a page without ``next_cursor`` is the last.
        With ``brief`` no job has its ``result``. Raises InvalidRequest, which names the wrong parameter.

        Args:
            stage: where the job stands: its stage run of this name is queued or running, or has failed.
            metadata: names and values that the job's metadata have, five at most. A name here has no ``=``.
            created_after: the job was submitted at this time or later: a datetime, or RFC 3339, with a zone.
            created_before: the same, earlier than this.
            tenant: whose jobs, where a caller sees those of all.
        """
        given: dict[str, object] = {"limit": limit, "cursor": cursor, "brief": "true" if brief else None}
        given |= {"status": status, "pipeline": pipeline, "stage": stage, "error_code": error_code, "tenant": tenant}
        given |= {"created_after": _time(created_after), "created_before": _time(created_before)}
        params: dict[str, str | list[str]] = {name: str(value) for name, value in given.items() if value is not None}
        if metadata:
            params["metadata"] = [f"{name}={value}" for name, value in metadata.items()]
        return (yield from _view(Page, HttpRequest("GET", "/v1/jobs", params=params)))

    def cancel_all(
        self, filter: JobsFilter, *, dry_run: bool = False, limit: int | None = None, cursor: str | None = None
    ) -> Steps[JobActionView]:
        """Cancel the jobs that match a filter, up to ``limit`` (1 to 1,000) of them; with ``dry_run`` count them alone.

        ``filter`` has the fields of ``list``, one at least. While the answer has a ``next_cursor``, call again with it
        as ``cursor``. A repeated call changes nothing, so this call is repeated by itself where that may help. Raises
        InvalidRequest, which names the wrong field.
        """
        return (yield from _act("cancel", {**filter, "dry_run": dry_run, "limit": limit, "cursor": cursor}))

    def retry_all(
        self,
        filter: JobsFilter,
        *,
        from_stage: str | None = None,
        version: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Steps[JobActionView]:
        """Retry the jobs that match and have failed, expired or been cancelled; those completed with ``from_stage``.

        ``version``: that of their pipelines on which they run; None: their own.
        ``stopped_by`` of the answer says why it ended early, such as a full backlog. Otherwise as ``cancel_all``.
        """
        given = {
            "from_stage": from_stage,
            "version": version,
            "dry_run": dry_run,
            "limit": limit,
            "cursor": cursor,
        }
        return (yield from _act("retry", {**filter, **given}))

    def advance_all(
        self, filter: JobsFilter, *, dry_run: bool = False, limit: int | None = None, cursor: str | None = None
    ) -> Steps[JobActionView]:
        """Bring the jobs that match and that nobody has started to the front of their tenants' lines.

        They keep the order that they have among them. Otherwise as ``cancel_all``.
        """
        return (yield from _act("advance", {**filter, "dry_run": dry_run, "limit": limit, "cursor": cursor}))

    def delete_all(
        self, filter: JobsFilter, *, dry_run: bool = False, limit: int | None = None, cursor: str | None = None
    ) -> Steps[JobActionView]:
        """Delete the jobs that match and have ended, with all their data. Otherwise as ``cancel_all``."""
        return (yield from _act("delete", {**filter, "dry_run": dry_run, "limit": limit, "cursor": cursor}))

    def usage(
        self,
        first_day: date | str | None = None,
        last_day: date | str | None = None,
        *,
        by: Sequence[str] = ("day", "tenant", "pipeline", "stage"),
        pipeline: str | None = None,
        tenant: str | None = None,
    ) -> Steps[UsageReport]:
        """Return what was used on these days (UTC), also by jobs that are deleted. Raises InvalidRequest.

        Args:
            first_day: a date, or text like "2026-01-05"; None: 29 days before the last one.
            last_day: the same; it is included. None: today.
            by: what the rows of the report have of day, tenant, pipeline and stage.
            pipeline: whose stages; None: all.
            tenant: whose jobs, where a caller sees those of all.
        """
        given = {"from": first_day, "to": last_day, "by": ",".join(by), "pipeline": pipeline, "tenant": tenant}
        params = {name: str(value) for name, value in given.items() if value is not None}
        return (yield from _view(UsageReport, HttpRequest("GET", "/v1/usage", params=params)))

    def events(self, job_id: str) -> Steps[Sequence[EventView]]:
        """Return a job's events, the oldest first. Raises NotFound."""
        return (yield from _view(list[EventView], HttpRequest("GET", _path(job_id, "/events"))))

    def stream(self, job_id: str, *, with_pings: bool = False) -> Items[JobEvent]:
        """Yield what happens to a job as it happens, until its end: text as it grows, progress, previews, artifacts.

        The first event is ``job``, the job as it is. Where a connection breaks, another one goes on, at any server: the
        text has no gap, and nothing comes twice. ``with_pings`` also gives the ``ping`` that the server sends every
        15 s while nothing happens. Raises NotFound, ServerBusy where too many watch jobs, ServerUnavailable where all
        connections of a minute tell nothing new, and the server's error.
        """
        yield from followed(_path(job_id, "/events"), with_pings=with_pings)

    def cancel(self, job_id: str) -> Steps[JobView]:
        """Cancel a job, and return it, perhaps still ``cancelling``; an ended one is unchanged. Raises NotFound."""
        return (yield from _view(JobView, HttpRequest("POST", _path(job_id, "/cancel"))))

    def retry(self, job_id: str, *, from_stage: str | None = None, version: str | None = None) -> Steps[JobView]:
        """Retry a job that has ended, and return it. Stages that did not succeed run again, and all that follow them.

        So do ``from_stage`` and all that follow it. With ``version`` they run on that version of the pipeline, if its
        stages take what earlier ones have handed on; Conflict says what differs. Raises NotFound, InvalidRequest for an
        unknown stage, TooManyJobs, and Conflict if the job has not ended, no stage is to run, or data that the stages
        need are deleted already.
        """
        retries = (yield from self.get(job_id)).retries
        given = {"from_stage": from_stage, "version": version}
        params = {name: value for name, value in given.items() if value is not None}
        try:
            return (yield from _view(JobView, HttpRequest("POST", _path(job_id, "/retry"), params=params)))
        except Conflict:
            job = yield from self.get(job_id)
            if job.retries == retries:
                raise
            return job  # the first try of this call succeeded, and its answer was lost

    def fork(
        self,
        job_id: str,
        from_stage: str,
        changes: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        cancel_after: float | str | None = None,
    ) -> Steps[JobView]:
        """Submit a job that takes over the stages of another one before ``from_stage``, and return it.

        Args:
            job_id: the job that is forked. It stays as it is, and may still run.
            from_stage: this stage and all that follow it run anew.
            changes: fields of a submit's body that differ: ``modalities``, ``audio``, ``image``, ``video``, ``stages``,
                ``seed``, ``previews``, ``metadata``, ``priority``, ``expires_at``, ``keep_payloads``.
            idempotency_key: forking the same job with the same arguments and key returns the same fork.
            cancel_after: as of ``submit``.

        Raises NotFound, TooManyJobs, InvalidRequest for a change that the fork cannot have, and Conflict if a stage to
        take over has not succeeded, or what a stage reads is not kept any longer.
        """
        headers = _submit_headers(idempotency_key or f"client-{uuid.uuid4().hex}", cancel_after)
        body = {**(changes or {}), "from_stage": from_stage}
        return (yield from _view(JobView, HttpRequest("POST", _path(job_id, "/fork"), headers=headers, json=body)))

    def advance(self, job_id: str) -> Steps[JobView]:
        """Bring a job to the front of its tenant's line, and return it.

        Raises NotFound, and Conflict for one that has begun or ended, or before which very many jobs stand.
        """
        return (yield from _view(JobView, HttpRequest("POST", _path(job_id, "/advance"))))

    def delete(self, job_id: str) -> Steps[None]:
        """Delete a job with its result and artifacts. Raises Conflict if the job has not ended, and NotFound."""
        yield from self.get(job_id)
        with suppress(NotFound):  # the first try of this call succeeded, and its answer was lost
            yield from answered(HttpRequest("DELETE", _path(job_id)))

    def wait(
        self,
        job_id: str,
        *,
        timeout: float | None = None,
        on_update: Callable[[JobView], object] | None = None,
    ) -> Steps[JobView]:
        """Wait until a job is completed, failed, cancelled or expired (its ``status``), and return it. Raises NotFound.

        An outage of the server of up to a minute is waited through.

        Args:
            timeout: seconds after which TimeoutError is raised; None waits forever.
            on_update: called with the job at first and whenever a poll finds it changed. AsyncClient awaits what it
                returns, if that is awaitable.
        """
        return (yield from self._until_end(job_id, timeout, None if on_update is None else partial(Update, on_update)))

    def watch(self, job_id: str, *, timeout: float | None = None) -> Items[JobView]:
        """Yield a job as it is, and again whenever a poll finds it changed; last as it has ended. Raises NotFound.

        The iteration raises TimeoutError after ``timeout`` seconds; None: never.
        """
        yield from self._until_end(job_id, timeout, Item)

    def _until_end(
        self, job_id: str, timeout: float | None, changed: Callable[[JobView], StepT] | None
    ) -> Generator[CallStep | StepT, Any, JobView]:
        """Poll a job until it has ended, and return it. ``changed`` makes a step of each view that tells something new.

        Without it the polls are few and long.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        longest = min(LONGEST_POLL_S, self.timeout_s / 2)
        seen: JobView | None = None
        pause = longest if changed is None else 0.0
        while True:
            begin = time.monotonic()
            kept_s = max(0.0, min(pause, deadline - begin))
            is_known = seen is not None or changed is None  # else the server may never have been there
            pauses = repeats.WAIT_PAUSES_S if is_known else None
            try:
                answer = yield from repeats.answered(_look(job_id, kept_s), pauses, deadline=deadline)
            except ServerUnavailable as error:
                raise ServerUnavailable(f"{error}; the job goes on: wait for {job_id} again") from error
            job = parsed(JobView, answer.content)
            if changed is not None:
                pause = min(pause * UPDATE_GROWTH, UPDATE_LONGEST_S, longest)
                if seen is None or job.stages != seen.stages:  # an estimate differs with every poll
                    pause = UPDATE_FIRST_S
                if job != seen:
                    seen = job
                    yield changed(job)
            if job.status.is_final:
                return job
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError(f"job {job_id} is {job.status.value} after {timeout:g} s")
            if now < begin + kept_s:  # a server that shuts down answers before the job ends
                yield Pause(min(UPDATE_FIRST_S, deadline - now))

    def artifact(self, job: JobView | str, name: str) -> Steps[bytes]:
        """Return an artifact's bytes. ``job`` may be an id. Raises NotFound, and Gone when it is kept no longer.

        Raises ObjectCorrupt if the bytes are damaged, or ServerUnavailable, because the server breaks off a large one.
        """
        download = yield from self._download(job, name)
        chunks = []
        while chunk := (yield from download.next_chunk()):
            chunks.append(chunk)
        return b"".join(chunks)

    def artifact_chunks(self, job: JobView | str, name: str) -> Items[bytes]:
        """Yield an artifact's bytes while they come, at most 1 MiB at a time. Raises what ``artifact`` raises.

        They are known to be right once the iteration has ended.
        """
        download = yield from self._download(job, name)
        while chunk := (yield from download.next_chunk()):
            yield Item(chunk)

    def save_artifact(self, job: JobView | str, name: str, path: Path) -> Steps[int]:
        """Stream an artifact to a file, and return its size in bytes. Raises OSError, and what ``artifact`` raises.

        The file appears whole or not at all.
        """
        download = yield from self._download(job, name)
        size = 0
        with new_file(path) as file:
            while chunk := (yield from download.next_chunk()):
                size += yield from done(partial(file.write, chunk))
        return size

    def save(self, job: JobView, directory: Path) -> Steps[Sequence[Path]]:
        """Write the job into ``directory``, which is made if needed. Return the paths of the files.

        They are ``result.json`` (the whole job), ``text.txt`` if its stages made text, and all artifacts; also of a job
        that is not completed. Raises InvalidRequest for an artifact whose name is no file name, and the errors of
        ``save_artifact``.
        """
        written = [*(yield from done(partial(_write_texts, job, directory)))]
        for artifact in job.artifacts:
            path = directory / artifact.name
            if path.parent != directory:
                raise InvalidRequest(f"the server names an artifact {artifact.name!r}", field="artifacts.name")
            yield from self.save_artifact(job, artifact.name, path)
            written.append(path)
        return written

    def _download(self, job: JobView | str, name: str) -> Steps[Download]:
        return Download((yield from self.get(job)) if isinstance(job, str) else job, name)


def _write_texts(job: JobView, directory: Path) -> Sequence[Path]:
    """Write the files of ``Calls.save`` that no download fills, and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written = [directory / "result.json"]
    written[0].write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")
    text = job.made.get("text")
    if text is not None:
        written.append(directory / "text.txt")
        # A tokenizer never decodes to surrogates; if one comes, the rest of the text must still be readable.
        written[-1].write_text(text, encoding="utf-8", errors="backslashreplace")
    return written


def _submit_headers(idempotency_key: str | None, cancel_after: float | str | None) -> dict[str, str]:
    headers = {}
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    if cancel_after is not None:
        headers["Cancel-After"] = cancel_after if isinstance(cancel_after, str) else f"{cancel_after:.3f}"
    return headers


def _look(job_id: str, within_s: float) -> HttpRequest:
    """Return the request for a job as it is, which is answered once it has ended or after these seconds."""
    params = {"wait": f"{within_s:.3f}"} if within_s else {}
    return HttpRequest("GET", _path(job_id), params=params, held_s=within_s)


def _view(view: type[T], request: HttpRequest) -> Steps[T]:
    """Return the view in the answer to a request, which is repeated while that may help."""
    return parsed(view, (yield from answered(request)).content)


def _act(action: str, given: Mapping[str, Any]) -> Steps[JobActionView]:
    """Do an action to many jobs."""
    body = {name: _time(value) if isinstance(value, datetime) else value for name, value in given.items()}
    body = {name: value for name, value in body.items() if value is not None}
    return (yield from _view(JobActionView, HttpRequest("POST", f"/v1/jobs/{action}", json=body, held_s=ACTION_S)))


def _time(at: datetime | str | None) -> str | None:
    """Return a time as the API takes it. Raises InvalidRequest for a datetime without a zone."""
    if not isinstance(at, datetime):
        return at
    if at.tzinfo is None:
        raise InvalidRequest("a datetime needs its zone", field="created_after, created_before")
    return at.isoformat()


def _path(job_id: str, below: str = "") -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}{below}"
