"""``Client``: calls the HTTP API, and repeats failed calls that are safe to repeat."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import httpx2
import xxhash
from pydantic import TypeAdapter, ValidationError

from omni_jobs.client.bulk_answers import answers_in, answers_of_tries
from omni_jobs.client.failed_calls import error_of, pause_before_retry
from omni_jobs.errors import (
    ConfigError,
    Conflict,
    InvalidRequest,
    NotFound,
    ObjectCorrupt,
    OmniJobsError,
    ServerUnavailable,
)
from omni_jobs.files import new_file
from omni_jobs.servers import check_base_url, without_user
from omni_jobs.views import (
    BulkAnswer,
    CalibrationView,
    EventView,
    JobView,
    Page,
    PipelineList,
    PipelineView,
    StagePauseView,
)

DEFAULT_URL = "http://127.0.0.1:8000"
PAUSES_S = (0.2, 0.5, 1.0, 2.0)  # before each repetition of a call
LONGEST_POLL_S = 20.0  # the server may hold a request until the job ends; proxies end longer ones
UPDATE_FIRST_S, UPDATE_LONGEST_S, UPDATE_GROWTH = 0.1, 1.0, 1.5  # pauses between two polls of a job's progress

T = TypeVar("T")

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Client(AbstractContextManager["Client"]):
    """Calls the HTTP API of one server. Use it as a context manager, or ``close`` it.

    Every call raises the server's error, a class of ``omni_jobs.errors``, and ServerUnavailable if it gave no answer.
    """

    def __init__(self, base_url: str | None = None, *, api_key: str | None = None, timeout: float = 30.0) -> None:
        """Prepare calls to the server at ``base_url``; by default OMNI_JOBS_URL, else http://127.0.0.1:8000.

        ``api_key`` goes with each call; by default OMNI_JOBS_API_KEY, or the content of the file that
        OMNI_JOBS_API_KEY_FILE names, else none. A try of a call fails after ``timeout`` seconds of silence. Raises
        ConfigError for a URL that is not http, and a key that cannot be read or sent.
        """
        given = os.environ.get("OMNI_JOBS_URL", DEFAULT_URL) if base_url is None else base_url
        try:
            self.base_url = check_base_url(given, may_have_user=True)
        except ValueError as error:
            raise ConfigError(str(error), field="OMNI_JOBS_URL" if base_url is None else "base_url") from None
        self._timeout_s = timeout
        self._http = httpx2.Client(
            base_url=self.base_url,
            timeout=timeout,
            verify=urlsplit(self.base_url).scheme != "http",  # certificates take long to load
            trust_env=urlsplit(self.base_url).hostname not in _LOOPBACK,  # this machine reaches itself without a proxy
            headers={"Accept": "application/json", **_authorization(api_key)},
        )

    def submit(
        self,
        body: Mapping[str, Any],
        *,
        prompt_embeds: bytes | Path | None = None,
        idempotency_key: str | None = None,
        cancel_after: float | str | None = None,
    ) -> JobView:
        """Submit a job, and return it as it is then, usually queued.

        Args:
            body: the body of a chat completion, with ``modalities``.
            prompt_embeds: a safetensors file, or its bytes, with one tensor ``prompt_embeds``: float, [tokens, hidden
                size]. It takes the place of ``messages``.
            idempotency_key: submitting the same body with the same key returns the same job. Without a key each call
                makes one new job.
            cancel_after: seconds, or a text like "15m", after which the job expires unless it has ended.

        Raises:
            TooManyJobs: if the backlog stays full; its ``retry_after_s`` says when to try again.
            InvalidRequest: if the request is wrong; its ``field`` names the field.
            NotFound: if the server serves no pipeline of the name in ``model``.
            IdempotencyKeyReused: if the idempotency key names a job of another body.
        """
        headers = _submit_headers(idempotency_key or f"client-{uuid.uuid4().hex}", cancel_after)
        content: dict[str, Any] = {"json": body}
        if prompt_embeds is not None:
            data = prompt_embeds.read_bytes() if isinstance(prompt_embeds, Path) else prompt_embeds
            parts = {"request": json.dumps(body).encode(), "prompt_embeds": data}
            content = {"files": {name: (name, part) for name, part in parts.items()}}
        return _parsed(JobView, self._call("POST", "/v1/jobs", headers=headers, **content))

    def submit_bulk(
        self,
        lines: Iterable[bytes],
        *,
        idempotency_key: str | None = None,
        cancel_after: float | str | None = None,
    ) -> Iterator[BulkAnswer]:
        """Submit many jobs, the JSON body of one per line. Yield an answer per line, in order, once all lines are sent.

        Nothing is sent before the iteration begins; an empty line has no answer. The call sets no ``timeout``. Lines
        that can be read again, such as those of a list, are sent again with the same key while that may help, which
        makes only jobs that are missing. An iterator gives its lines once; after an error the caller may send the same
        lines again with the same ``idempotency_key``. ``cancel_after`` applies to each line.

        If the server has not handled all lines, the iteration raises its error after the last answer, for example
        DatabaseUnavailable, TooSlow or RequestTooLarge; the message names the last line that it has handled. After any
        other error some jobs may exist as well.
        """
        is_read_once = iter(lines) is lines
        key = idempotency_key if is_read_once or idempotency_key is not None else f"client-{uuid.uuid4().hex}"
        headers = {"Content-Type": "application/jsonl", **_submit_headers(key, cancel_after)}

        def send() -> Iterator[BulkAnswer]:
            content = (line.rstrip(b"\r\n") + b"\n" for line in lines)
            with self._stream("POST", "/v1/jobs/bulk", content=content, headers=headers, timeout=None) as response:
                yield from answers_in(response.iter_bytes())

        yield from send() if is_read_once else answers_of_tries(send)

    def pipelines(self) -> Sequence[PipelineView]:
        """Return the pipelines that the server serves. A submit names one of them as ``model``."""
        return _parsed(PipelineList, self._call("GET", "/v1/pipelines")).pipelines

    def set_paused(self, pipeline: str, stage: str, is_paused: bool) -> StagePauseView:
        """Pause or resume a stage, and return its pause, which may be older than this call. Raises NotFound."""
        path = f"/v1/pipelines/{quote(pipeline, safe='')}/stages/{quote(stage, safe='')}"
        return _parsed(StagePauseView, self._call("POST", f"{path}/{'pause' if is_paused else 'resume'}"))

    def calibrations(self) -> Sequence[CalibrationView]:
        """Return how many estimates of each stage's waits have held; stages without any are left out."""
        return _parsed(list[CalibrationView], self._call("GET", "/v1/estimates"))

    def get(self, job_id: str, *, within_s: float = 0.0) -> JobView:
        """Return a job as it is now; with ``within_s``, once it has ended or after these seconds. Raises NotFound."""
        params = {"wait": f"{within_s:.3f}"} if within_s else {}
        return _parsed(JobView, self._call("GET", _path(job_id), params=params))

    def list(
        self,
        *,
        limit: int = 20,
        cursor: str | None = None,
        status: str | None = None,
        pipeline: str | None = None,
        error_code: str | None = None,
        brief: bool = False,
    ) -> Page:
        """Return a page of jobs, the newest first. The ``next_cursor`` of a page is the ``cursor`` of the next page.

        A page holds fewer than ``limit`` jobs if their results are large, so only a page without ``next_cursor`` is
        the last. With ``brief`` no job has its ``result``. Raises InvalidRequest, which names the wrong parameter.
        """
        given = {"limit": limit, "cursor": cursor, "status": status, "pipeline": pipeline, "error_code": error_code}
        given["brief"] = "true" if brief else None
        params = {name: value for name, value in given.items() if value is not None}
        return _parsed(Page, self._call("GET", "/v1/jobs", params=params))

    def events(self, job_id: str) -> Sequence[EventView]:
        """Return a job's events, the oldest first. Raises NotFound."""
        return _parsed(list[EventView], self._call("GET", _path(job_id, "/events")))

    def cancel(self, job_id: str) -> JobView:
        """Cancel a job, and return it, perhaps still ``cancelling``; an ended one is unchanged. Raises NotFound."""
        return _parsed(JobView, self._call("POST", _path(job_id, "/cancel")))

    def retry(self, job_id: str, *, from_stage: str | None = None) -> JobView:
        """Retry a job that has ended, and return it. Stages that did not succeed run again, and all that follow them.

        So do ``from_stage`` and all that follow it. Raises NotFound, InvalidRequest for an unknown stage, TooManyJobs,
        and Conflict if the job has not ended, no stage is to run, or data that the stages need are deleted already.
        """
        retries = self.get(job_id).retries
        params = {} if from_stage is None else {"from_stage": from_stage}
        try:
            return _parsed(JobView, self._call("POST", _path(job_id, "/retry"), params=params))
        except Conflict:
            job = self.get(job_id)
            if job.retries == retries:
                raise
            return job  # the first try of this call succeeded, and its answer was lost

    def delete(self, job_id: str) -> None:
        """Delete a job with its result and artifacts. Raises Conflict if the job has not ended, and NotFound."""
        self.get(job_id)
        with suppress(NotFound):  # the first try of this call succeeded, and its answer was lost
            self._call("DELETE", _path(job_id))

    def wait(
        self,
        job_id: str,
        *,
        timeout: float | None = None,
        on_update: Callable[[JobView], object] | None = None,
    ) -> JobView:
        """Wait until a job is completed, failed, cancelled or expired (its ``status``), and return it. Raises NotFound.

        Args:
            timeout: seconds after which TimeoutError is raised; None waits forever.
            on_update: called with the job at first and whenever a poll finds it changed.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        longest = min(LONGEST_POLL_S, self._timeout_s / 2)
        seen: JobView | None = None
        pause = longest if on_update is None else 0.0
        while True:
            begin = time.monotonic()
            kept_s = max(0.0, min(pause, deadline - begin))
            job = self.get(job_id, within_s=kept_s)
            if on_update is not None:
                pause = min(pause * UPDATE_GROWTH, UPDATE_LONGEST_S, longest)
                if seen is None or job.stages != seen.stages:  # an estimate differs with every poll
                    pause = UPDATE_FIRST_S
                if job != seen:
                    seen = job
                    on_update(job)
            if job.status.is_final:
                return job
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError(f"job {job_id} is {job.status.value} after {timeout:g} s")
            if now < begin + kept_s:  # a server that shuts down answers before the job ends
                time.sleep(min(UPDATE_FIRST_S, deadline - now))

    def artifact(self, job: JobView | str, name: str) -> bytes:
        """Return an artifact's bytes. ``job`` may be an id. Raises NotFound, and Gone when it is kept no longer.

        Raises ObjectCorrupt if the bytes are damaged, or ServerUnavailable, because the server breaks off a large one.
        """
        return b"".join(self._chunks(self.get(job) if isinstance(job, str) else job, name))

    def save_artifact(self, job: JobView, name: str, path: Path) -> int:
        """Stream an artifact to a file, and return its size in bytes. Raises OSError, and what ``artifact`` raises.

        The file appears whole or not at all.
        """
        with new_file(path) as file:
            return sum(map(file.write, self._chunks(job, name)))

    def save(self, job: JobView, directory: Path) -> Sequence[Path]:
        """Write the job into ``directory``, which is made if needed. Return the paths of the files.

        They are ``result.json`` (the whole job), ``text.txt`` if its stages made text, and all artifacts; also of a job
        that is not completed. Raises InvalidRequest for an artifact whose name is no file name, and the errors of
        ``save_artifact``.
        """
        directory.mkdir(parents=True, exist_ok=True)
        written = [directory / "result.json"]
        written[0].write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")
        text = job.made.get("text")
        if text is not None:
            written.append(directory / "text.txt")
            # A tokenizer never decodes to surrogates; if one comes, the rest of the text must still be readable.
            written[-1].write_text(text, encoding="utf-8", errors="backslashreplace")
        for artifact in job.artifacts:
            path = directory / artifact.name
            if path.parent != directory:
                raise InvalidRequest(f"the server names an artifact {artifact.name!r}", field="artifacts.name")
            self.save_artifact(job, artifact.name, path)
            written.append(path)
        return written

    def _chunks(self, job: JobView, name: str) -> Iterator[bytes]:
        artifact = next((artifact for artifact in job.artifacts if artifact.name == name), None)
        if artifact is None:
            known = ", ".join(artifact.name for artifact in job.artifacts) or "none"
            raise NotFound(f"job {job.id} has no artifact {name!r}; it has: {known}", field="name")
        digest = xxhash.xxh3_128()
        with self._download(_path(job.id, f"/artifacts/{quote(name, safe='')}")) as response:
            for chunk in response.iter_bytes():
                digest.update(chunk)
                yield chunk
        if artifact.digest != (received := f"xxh3:{digest.hexdigest()}"):
            raise ObjectCorrupt(f"digest {received}, expected {artifact.digest}", key=f"{job.id}/{name}")

    def _call(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Return a successful answer. Repeat the call while that may help, so it must be safe to repeat."""
        pauses = iter(PAUSES_S)
        while True:
            try:
                with self._answered(path):
                    response = self._http.request(method, path, **options)
                if response.is_success:
                    return response
                raise error_of(response)
            except OmniJobsError as error:
                pause = pause_before_retry(error, next(pauses, None))
                if pause is None:
                    raise
            time.sleep(pause)

    @contextmanager
    def _stream(self, method: str, path: str, **options: Any) -> Iterator[httpx2.Response]:
        """Call once, and give the block a successful answer whose content it reads as a stream."""
        with self._answered(path), self._http.stream(method, path, **options) as response:
            if not response.is_success:
                response.read()
                raise error_of(response)
            yield response

    @contextmanager
    def _download(self, path: str) -> Iterator[httpx2.Response]:
        """Give the block an answer with the bytes of an artifact: the server's, or that of the store it redirects to.

        The store gets no API key. Its URL stands in no error, because whoever has it gets the artifact.
        """
        with self._answered(path), self._http.stream("GET", path) as response:
            if response.status_code != HTTPStatus.TEMPORARY_REDIRECT:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                yield response
                return
            url = urljoin(str(response.url), response.headers.get("Location", ""))
        host = urlsplit(url).hostname
        try:
            with httpx2.stream("GET", url, timeout=self._timeout_s, trust_env=host not in _LOOPBACK) as stored:
                if not stored.is_success:
                    raise ServerUnavailable(f"HTTP {stored.status_code} from the object store at {host}")
                yield stored
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise ServerUnavailable(f"no answer from the object store at {host}: {type(error).__name__}") from error

    @contextmanager
    def _answered(self, path: str) -> Iterator[None]:
        """Turn an error of the connection in this block into ServerUnavailable."""
        try:
            yield
        except httpx2.TransportError as error:
            where = without_user(self.base_url)
            raise ServerUnavailable(f"no answer from {where}{path}: {error or type(error).__name__}") from error

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _authorization(api_key: str | None) -> dict[str, str]:
    """Return the header with the key, or the environment's; none without a key. Raises ConfigError."""
    if api_key is None and any(name.upper().startswith("OMNI_JOBS_API_KEY") for name in os.environ):
        from omni_jobs.settings import read_api_key

        api_key = read_api_key()
    if api_key is None:
        return {}
    if not (api_key and api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise ConfigError("not an API key", field="api_key")
    return {"Authorization": f"Bearer {api_key}"}


def _submit_headers(idempotency_key: str | None, cancel_after: float | str | None) -> dict[str, str]:
    headers = {}
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    if cancel_after is not None:
        headers["Cancel-After"] = cancel_after if isinstance(cancel_after, str) else f"{cancel_after:.3f}"
    return headers


def _parsed(view: type[T], response: httpx2.Response) -> T:
    try:
        return TypeAdapter(view).validate_json(response.content)
    except ValidationError as error:
        raise OmniJobsError(f"the server's answer is no valid {error.title}: {error.errors()[0]['msg']}") from error


def _path(job_id: str, below: str = "") -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}{below}"
