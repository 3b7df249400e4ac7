"""``EventStream``: a job's events as they come, told from the database alone, so that any server can go on with them.

job        the job as it is, once, at the beginning
stage      a stage run has another state, or another attempt
progress   how far a stage run is
text       a part of the text that a stage run makes
picture    the newest preview of a stage run, of a job that asked for previews
artifact   a stored output that is there now
job.…      an event that is kept with the job; it alone has an id. That of the job's end is the last
error      why nothing more comes
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from anyio.to_thread import run_sync
from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.responses import Response

from omni_jobs.database.tables import decode_json, encode_json
from omni_jobs.errors import InvalidRequest, OmniJobsError
from omni_jobs.http.error_answers import shape_of
from omni_jobs.http.large_event import LargeEvent, line_event
from omni_jobs.jobs import Glance, Jobs, RunGlance
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import EventView, JobView
from omni_jobs.watch.new_text import NewText
from omni_jobs.watch.watch import Watch, WatchPlace

# Watch.release ends the streams of its server; the library would end those of all servers in the process.
AppStatus.enable_automatic_graceful_drain = False
_PING_S = 15  # proxies close what is silent for a minute
_SEND_S = 30.0  # a client that reads nothing for so long is dropped
_ENDS = frozenset(f"job.{state.value}" for state in JobState if state.is_final)
MOST_CHARS = 16_384  # of one event
_LINE_END = "\n"  # the specification allows others, and readers that were written for OpenAI's streams do not


class TextPlace(NamedTuple):
    """How much of the text of a stage's attempt a client has: its first ``offset`` characters."""

    stage: str
    attempt: int
    offset: int

    @classmethod
    def of(cls, text: str) -> Self:
        """Read "STAGE:ATTEMPT:OFFSET". Raises InvalidRequest."""
        stage, _, numbers = text.partition(":")
        attempt, _, offset = numbers.partition(":")
        if not (stage and all(n.isascii() and n.isdigit() and len(n) <= 10 for n in (attempt, offset))):
            raise InvalidRequest("must be STAGE:ATTEMPT:OFFSET, as in thinker:1:250", field="text_from")
        return cls(stage, int(attempt), int(offset))


@dataclass(slots=True)
class _Told:
    """What the client was told of a stage run."""

    state: StageRunState | None = None
    attempt: int | None = None  # 0: a fork took it over, or it has not begun
    progress_json: str | None = None
    progress: Mapping[str, Any] | None = None
    picture: str | None = None
    offset: int = 0  # the characters of the attempt's text that it has


class EventStream:
    """The events of one job for one client. For one event loop."""

    def __init__(
        self,
        jobs: Jobs,
        watch: Watch,
        see: Callable[[], JobView],
        tenant: str | None,
        place: WatchPlace,
        *,
        after: int = 0,
        places: Mapping[str, TextPlace] | None = None,
    ) -> None:
        """``see`` reads the job as the client may see it; ``tenant`` is whom it ``sees``.

        ``place`` is the client's among those that watch.
        ``after`` is the number of the last kept event that the client has, and ``places`` say what texts it has.
        """
        self._jobs = jobs
        self._watch = watch
        self._see = see
        self._tenant = tenant
        self._place = place
        self._after = after
        self._places = places or {}
        self._runs: dict[str, _Told] = {}
        self._artifacts: set[str] = set()
        self._state: JobState | None = None
        self._has_end = False

    async def events(self) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        """Yield the events until the job's end. End early, without it, if the server stops or the client has left.

        The first step raises NotFound. A later error is the last event.
        """
        job, begin = await run_sync(self._begin)
        changes = self._watch.changes(job.id, self._place, with_runs=True)
        async with aclosing(changes):
            glance = await anext(changes, None)
            yield begin
            try:
                while glance is not None:
                    async for event in self._told(job.id, glance):
                        yield event
                    if glance.state.is_final:
                        return
                    glance = await anext(changes, None)
                await run_sync(self._see)  # the job may be gone, or the database away
            except OmniJobsError as error:
                yield _event("error", {"error": shape_of(error)})

    def _begin(self) -> tuple[JobView, ServerSentEvent | LargeEvent]:
        """Return the job and the event with it, encoded on this thread, because the job's text may be large."""
        job = self._see()
        return job, line_event("job", job.model_dump_json())

    async def _told(self, job_id: str, glance: Glance) -> AsyncGenerator[ServerSentEvent, None]:
        """Yield what is new in a glance."""
        ended = False
        texts = NewText(self._jobs, self._watch, job_id)
        for run in glance.runs:
            told = self._runs.setdefault(run.stage, _Told())
            if run.attempt != told.attempt:
                told = self._runs[run.stage] = _Told(attempt=run.attempt, offset=self._offset(run))
            has_changed, told.state = run.state is not told.state, run.state
            has_succeeded = has_changed and run.state is StageRunState.SUCCEEDED
            if has_changed and not has_succeeded:
                yield _stage(run)
            for event in _news(run, told):
                yield event
            for event in _texts(run, told, await texts.since(told.offset, run, has_succeeded=has_succeeded)):
                yield event
            if has_succeeded:
                yield _stage(run)
                ended = True
        if ended:
            for artifact in (await run_sync(self._see)).artifacts:
                if artifact.name not in self._artifacts:
                    self._artifacts.add(artifact.name)
                    yield _event("artifact", artifact)
        if glance.state is not self._state:
            self._state = glance.state
            for kept in await self._kept(job_id, glance.state.is_final):
                yield _event(kept.type, kept, kept.id)
            if glance.state.is_final and not self._has_end:
                yield _event(
                    f"job.{glance.state.value}", {"type": f"job.{glance.state.value}"}
                )  # it is not kept any longer

    async def _kept(self, job_id: str, is_final: bool) -> list[EventView]:
        """Return the kept events that the client does not have yet, and in any case that of the job's end.

        They are read after the glance. If the job has ended or was retried since then, the next glance or the next
        stream tells of that: what the client reads before a job's end must be all that came before it.
        """
        kept = await run_sync(self._jobs.events, job_id, self._tenant)
        retries = [number for number, event in enumerate(kept) if event.type == "job.retried"]
        kept = kept[max(retries, default=0) :]  # an end before it is the stream's end no more
        if not is_final:
            if kept and kept[-1].type in _ENDS:
                kept.pop()
            new = [event for event in kept if event.id > self._after]
        else:
            while kept and kept[-1].type not in _ENDS:
                kept.pop()
            self._has_end = bool(kept)
            new = [event for event in kept[:-1] if event.id > self._after] + kept[-1:]
        self._after = max([self._after, *(event.id for event in new)])
        return new

    def _offset(self, run: RunGlance) -> int:
        """Return how much of the attempt's text the client has."""
        place = self._places.get(run.stage)
        return place.offset if place is not None and place.attempt == run.attempt else 0


def _news(run: RunGlance, told: _Told) -> Iterator[ServerSentEvent]:
    """Yield how far a stage run is, and its preview, if they are new."""
    if run.progress_json is None or run.progress_json == told.progress_json:
        return
    told.progress_json = run.progress_json
    its = decode_json(run.progress_json)
    progress = {name: its[name] for name in ("done", "total", "unit", "resumed_at")}
    if progress != told.progress:
        told.progress = progress
        yield _event("progress", {"stage": run.stage, "attempt": run.attempt, **progress})
    if (picture := its.get("picture")) != told.picture:
        told.picture = picture
        yield _event("picture", {"stage": run.stage, "attempt": run.attempt, "picture": picture})


def _texts(run: RunGlance, told: _Told, new: str) -> Iterator[ServerSentEvent]:
    """Yield new text in parts."""
    for start in range(0, len(new), MOST_CHARS):
        part = new[start : start + MOST_CHARS]
        yield _event("text", {"stage": run.stage, "attempt": run.attempt, "offset": told.offset, "text": part})
        told.offset += len(part)


def _stage(run: RunGlance) -> ServerSentEvent:
    return _event("stage", {"stage": run.stage, "attempt": run.attempt, "status": run.state.value})


def _event(name: str, data: BaseModel | Mapping[str, Any], number: int | None = None) -> ServerSentEvent:
    text = data.model_dump_json() if isinstance(data, BaseModel) else encode_json(data)
    return ServerSentEvent(text, event=name, id=None if number is None else str(number))


async def answer_with(
    events: AsyncGenerator[ServerSentEvent | LargeEvent, None], ping: Callable[[], str] | None = None
) -> Response:
    """Return the answer that streams these events. Raises what their first step does.

    ``ping`` makes the data of what keeps proxies from closing the connection; None: a comment.
    """
    first = await anext(events)
    return stream_of(_from(first, events), ping)


def stream_of(
    events: AsyncGenerator[ServerSentEvent | LargeEvent, None], ping: Callable[[], str] | None = None
) -> Response:
    """Return the answer that streams these events, whose first step raises nothing. ``ping`` as in ``answer_with``."""
    return _StreamOfEvents(events, None if ping is None else lambda: ServerSentEvent(ping(), sep=_LINE_END))


class _StreamOfEvents(EventSourceResponse):
    """The answer that streams events, and pings between them."""

    def __init__(
        self,
        events: AsyncGenerator[ServerSentEvent | LargeEvent, None],
        ping: Callable[[], ServerSentEvent] | None,
    ) -> None:
        pieces = self._pieces(events)
        super().__init__(pieces, ping=_PING_S, send_timeout=_SEND_S, sep=_LINE_END, ping_message_factory=ping)

    async def _pieces(self, events: AsyncGenerator[ServerSentEvent | LargeEvent, None]) -> AsyncGenerator[bytes, None]:
        """Yield what is sent of the events."""
        async with aclosing(events):
            async for event in events:
                if isinstance(event, LargeEvent):
                    async with self._send_lock, aclosing(event.encoded()) as pieces:  # a ping waits for this lock
                        async for piece in pieces:
                            yield piece
                else:
                    encoded = event.encode()  # data are JSON, which has no line ends
                    yield encoded.replace(b"\r\n", _LINE_END.encode()) if encoded.endswith(b"\r\n") else encoded


async def _from(
    first: ServerSentEvent | LargeEvent, events: AsyncGenerator[ServerSentEvent | LargeEvent, None]
) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event
