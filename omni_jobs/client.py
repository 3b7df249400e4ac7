"""The Python client of the HTTP API: typed, synchronous, safe to retry.

    client = Client("http://127.0.0.1:8000")
    job = client.submit({"model": "qwen2_5_omni", "messages": [user_message("Hello")], "modalities": ["text", "audio"]})
    job = client.wait(job.id, timeout=600)
    print(job.result["text"])
    client.save(job, Path("out"))   # result.json, text.txt, audio.wav

Every call is tried again while the server does not answer, or says that too many jobs
wait: a submit carries an idempotency key, so that none of its tries makes a second job.
Errors are the server's own, raised as the class of their code (:mod:`omni_jobs.errors`).
"""

from __future__ import annotations

import base64
import json
import mimetypes
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import xxhash
from pydantic import BaseModel, TypeAdapter, ValidationError

from omni_jobs.errors import (
    ConfigError,
    Conflict,
    InvalidRequest,
    NotFound,
    ObjectCorrupt,
    OmniJobsError,
    ServerUnavailable,
    TooManyJobs,
)
from omni_jobs.views import ArtifactView, BulkAnswer, EventView, JobView, Page, PipelineList, PipelineView

__all__ = ["Client", "error_of", "user_message"]

DEFAULT_URL = "http://127.0.0.1:8000"
PAUSES_S = (0.2, 0.5, 1.0, 2.0)  # between the tries of one call
LONGEST_WAIT_S = 10  # for room in the queue, at a time; longer is for the caller to decide
LONGEST_POLL_S = 20.0  # that the server keeps a request until the job's end; less than proxies give it
UPDATE_FIRST_S, UPDATE_LONGEST_S, UPDATE_GROWTH = 0.1, 1.0, 1.5  # between two looks at how far a job is

View = TypeVar("View", bound=BaseModel)

_EVENTS = TypeAdapter(list[EventView])
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Client:
    """One server. Use it as a context manager, or ``close`` it."""

    def __init__(self, base_url: str | None = None, *, timeout: float = 30.0) -> None:
        """``base_url``: default the environment's OMNI_JOBS_URL, else http://127.0.0.1:8000. ``timeout``: seconds."""
        self.base_url = (base_url or os.environ.get("OMNI_JOBS_URL") or DEFAULT_URL).rstrip("/")
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"not an http URL: {self.base_url!r}", field="base_url")
        self._timeout_s = timeout
        self._http = httpx2.Client(
            base_url=self.base_url,
            timeout=timeout,
            trust_env=parts.hostname not in _LOOPBACK,  # no proxy stands between this machine and itself
            headers={"Accept": "application/json"},
        )

    def submit(
        self,
        body: Mapping[str, Any],
        *,
        prompt_embeds: bytes | Path | None = None,
        idempotency_key: str | None = None,
        cancel_after: float | str | None = None,
    ) -> JobView:
        """Submit a job: a chat completion's body, with ``modalities``. Returns it, queued.

        ``prompt_embeds``: a safetensors file with one tensor of that name, float [tokens, hidden
        size], or its bytes; it takes the place of ``messages``.
        The same ``idempotency_key`` with the same body gives the same job again; without
        one, each call makes a job of its own, however often it has to be tried.
        ``cancel_after``: seconds, or like "15m", until it stops by itself.
        Raises TooManyJobs when there is no room for it soon; its ``retry_after_s`` says when.
        """
        headers = {"Idempotency-Key": idempotency_key or f"client-{uuid.uuid4().hex}"}
        if cancel_after is not None:
            headers["Cancel-After"] = _duration(cancel_after)
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
        """Submit many jobs: the JSON of one a line; their answers in the order of the lines, once all are sent.

        Sent and read as a stream. It is not tried again by itself: with an ``idempotency_key`` the same
        lines may be sent again, and make only what is missing. ``cancel_after``: as for ``submit``, of each line.
        Raises RequestTooLarge or ServerBusy after the last answer where the server has not looked at all lines; it
        says which.
        """
        headers = {"Content-Type": "application/jsonl"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        if cancel_after is not None:
            headers["Cancel-After"] = _duration(cancel_after)
        content = (line.rstrip(b"\r\n") + b"\n" for line in lines)
        path = "/v1/jobs/bulk"
        with (
            self._answered(path),
            self._http.stream("POST", path, content=content, headers=headers, timeout=None) as response,
        ):
            if not response.is_success:
                response.read()
                raise error_of(response)
            for answer in response.iter_lines():
                if '"lines"' not in answer[:9]:
                    yield BulkAnswer.model_validate_json(answer)
                elif (error := json.loads(answer).get("error")) is not None:  # the last: their counts
                    raise OmniJobsError.from_dict(error)

    def pipelines(self) -> Sequence[PipelineView]:
        """What the server can be asked for; ``model`` of a submit is the name of one."""
        return _parsed(PipelineList, self._call("GET", "/v1/pipelines")).pipelines

    def get(self, job_id: str) -> JobView:
        return _parsed(JobView, self._call("GET", _path(job_id)))

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
        """The newest jobs first; ``next_cursor`` of one page is the ``cursor`` of the next.

        A page may hold fewer than ``limit`` jobs, where their results are large: only a page
        without a ``next_cursor`` is the last. ``brief`` leaves every ``result`` out.
        """
        given = {"limit": limit, "cursor": cursor, "status": status, "pipeline": pipeline, "error_code": error_code}
        params = {name: value for name, value in given.items() if value is not None}
        if brief:
            params["brief"] = "true"
        return _parsed(Page, self._call("GET", "/v1/jobs", params=params))

    def events(self, job_id: str) -> Sequence[EventView]:
        """What became of a job, the oldest first."""
        response = self._call("GET", _path(job_id, "/events"))
        try:
            return _EVENTS.validate_json(response.content)
        except ValidationError as error:
            raise OmniJobsError(f"the server's answer is no list of events: {error.errors()[0]['msg']}") from error

    def cancel(self, job_id: str) -> JobView:
        """Ask the job to stop; it may be ``cancelling`` for a moment."""
        return _parsed(JobView, self._call("POST", _path(job_id, "/cancel")))

    def retry(self, job_id: str, *, from_stage: str | None = None) -> JobView:
        """Send a job that has ended on again: what did not succeed, or all from a stage on.

        Raises Conflict while it has not ended, or when what is needed is not kept any longer.
        """
        retries = self.get(job_id).retries
        params = {} if from_stage is None else {"from_stage": from_stage}
        try:
            return _parsed(JobView, self._call("POST", _path(job_id, "/retry"), params=params))
        except Conflict:
            job = self.get(job_id)
            if job.retries == retries:
                raise
            return job  # an earlier try of this call did it, and its answer was lost

    def delete(self, job_id: str) -> None:
        """Delete a job that has ended, with all it made. Raises Conflict and NotFound."""
        self.get(job_id)
        with suppress(NotFound):  # an earlier try of this call did it
            self._call("DELETE", _path(job_id))

    def wait(
        self,
        job_id: str,
        *,
        timeout: float | None = None,
        on_update: Callable[[JobView], object] | None = None,
    ) -> JobView:
        """The job once it is completed, failed, cancelled or expired; look at ``status``.

        ``on_update`` gets the job whenever something of it changed. Raises TimeoutError.
        """
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        longest = min(LONGEST_POLL_S, self._timeout_s / 2)
        seen: JobView | None = None
        pause = longest if on_update is None else 0.0
        while True:
            begin = time.monotonic()
            kept_s = max(0.0, min(pause, deadline - begin))
            job = self._at_end(job_id, within_s=kept_s)
            if on_update is not None:
                pause = min(pause * UPDATE_GROWTH, UPDATE_LONGEST_S, longest)
                if job != seen:
                    seen, pause = job, UPDATE_FIRST_S
                    on_update(job)
            if job.status.is_final:
                return job
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError(f"job {job_id} is {job.status.value} after {timeout:g} s")
            if now < begin + kept_s:  # a server that stops answers sooner
                time.sleep(min(UPDATE_FIRST_S, deadline - now))

    def _at_end(self, job_id: str, within_s: float) -> JobView:
        """The job once it has ended, or after this time as it is then."""
        params = {"wait": f"{within_s:.3f}"} if within_s else {}
        return _parsed(JobView, self._call("GET", _path(job_id), params=params))

    def artifact(self, job: JobView | str, name: str) -> bytes:
        """A whole artifact of a job, or of the job with this id; its digest checked."""
        return b"".join(self._chunks(self.get(job) if isinstance(job, str) else job, name))

    def save_artifact(self, job: JobView, name: str, path: Path) -> int:
        """Stream an artifact to a file, which appears whole or not at all. Returns its bytes."""
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        size = 0
        try:
            with open(partial, "wb") as file:
                for chunk in self._chunks(job, name):
                    size += file.write(chunk)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return size

    def save(self, job: JobView, directory: Path) -> Sequence[Path]:
        """Write ``result.json`` (the whole job), ``text.txt`` if it has text, and every artifact."""
        directory.mkdir(parents=True, exist_ok=True)
        written = [directory / "result.json"]
        written[0].write_text(job.model_dump_json(indent=2) + "\n", encoding="utf-8")
        text = (job.result or {}).get("text")
        if text is not None:
            written.append(directory / "text.txt")
            # Surrogates cannot come from a tokenizer's own decoding; if one does, the rest must still be readable.
            written[-1].write_text(text, encoding="utf-8", errors="backslashreplace")
        for artifact in job.artifacts:
            path = directory / artifact.name
            if path.parent != directory:
                raise InvalidRequest(f"the server names an artifact {artifact.name!r}", field="artifacts.name")
            self.save_artifact(job, artifact.name, path)
            written.append(path)
        return written

    def _chunks(self, job: JobView, name: str) -> Iterator[bytes]:
        artifact = _artifact_named(job, name)
        digest = xxhash.xxh3_128()
        with self._answered(artifact.url), self._http.stream("GET", artifact.url) as response:
            if not response.is_success:
                response.read()
                raise error_of(response)
            for chunk in response.iter_bytes():
                digest.update(chunk)
                yield chunk
        if artifact.digest != (found := f"xxh3:{digest.hexdigest()}"):
            raise ObjectCorrupt(f"digest {found}, expected {artifact.digest}", key=f"{job.id}/{name}")

    def _call(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """One call, tried again while there is no answer; its caller knows what a second time does."""
        for pause in (*PAUSES_S, None):
            try:
                with self._answered(path):
                    response = self._http.request(method, path, **options)
                if response.is_success:
                    return response
                raise error_of(response)
            except TooManyJobs as error:
                if pause is None or error.retry_after_s > LONGEST_WAIT_S:
                    raise
                pause = error.retry_after_s
            except OmniJobsError as error:
                if pause is None or not error.retryable:
                    raise
            time.sleep(pause)
        raise AssertionError("unreachable")

    @contextmanager
    def _answered(self, path: str) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            raise ServerUnavailable(f"no answer from {self.base_url}{path}: {error or type(error).__name__}") from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def user_message(
    text: str | None = None,
    *,
    audio: Sequence[Path] = (),
    images: Sequence[Path] = (),
    videos: Sequence[Path] = (),
) -> dict[str, Any]:
    """A user's message of media files and a text, in that order."""
    parts: list[dict[str, Any]] = []
    for path in audio:
        sound = {"data": _base64(path)}
        if (kind := path.suffix.lstrip(".").lower()) in ("wav", "mp3", "flac", "ogg"):  # else the bytes tell
            sound["format"] = kind
        parts.append({"type": "input_audio", "input_audio": sound})
    parts += [{"type": "image_url", "image_url": {"url": _data_url(path, "image/png")}} for path in images]
    parts += [{"type": "video_url", "video_url": {"url": _data_url(path, "video/mp4")}} for path in videos]
    if text is not None:
        parts.append({"type": "text", "text": text})
    return {"role": "user", "content": parts}


def error_of(response: httpx2.Response) -> OmniJobsError:
    """Return the error that a response carries, as an instance of the class that its code names."""
    try:
        error = OmniJobsError.from_dict(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code} {response.reason_phrase} from {response.request.url}"
        if response.status_code in (502, 503, 504):
            return ServerUnavailable(message)
        return NotFound(message) if response.status_code == 404 else OmniJobsError(message)
    retry_after = response.headers.get("Retry-After", "")
    if isinstance(error, TooManyJobs) and retry_after.isdecimal():
        error.retry_after_s = int(retry_after)
    return error


def _duration(cancel_after: float | str) -> str:
    return cancel_after if isinstance(cancel_after, str) else f"{cancel_after:.3f}"


def _parsed(view: type[View], response: httpx2.Response) -> View:
    try:
        return view.model_validate_json(response.content)
    except ValidationError as error:
        raise OmniJobsError(f"the server's answer is not a {view.__name__}: {error.errors()[0]['msg']}") from error


def _path(job_id: str, below: str = "") -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}{below}"


def _artifact_named(job: JobView, name: str) -> ArtifactView:
    for artifact in job.artifacts:
        if artifact.name == name:
            return artifact
    known = ", ".join(artifact.name for artifact in job.artifacts) or "none"
    raise NotFound(f"job {job.id} has no artifact {name!r}; it has: {known}", field="name")


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


def _data_url(path: Path, default: str) -> str:
    return f"data:{mimetypes.guess_type(path.name)[0] or default};base64,{_base64(path)}"
