"""``ResponseStream``: the events of a response as its text grows, told from the database alone.

    created, queued, in_progress → message: added, delta …, done → calls of tools → completed | incomplete | failed

Any server takes a stream up after any event, because the number of an event says what comes after it
(``omni_jobs.openai.responses.numbers``). Where an attempt is lost, the next one is followed in silence as long as it
writes what the client was told. If it writes something else, or nobody knows any longer what the client was told, the
message is closed as incomplete, and the attempt's own message begins.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from itertools import chain
from typing import Any, NamedTuple

from anyio.to_thread import run_sync
from sse_starlette import ServerSentEvent

from omni_jobs.errors import OmniJobsError, TextChanged
from omni_jobs.http.large_event import LargeEvent, line_event
from omni_jobs.jobs import Glance, Jobs
from omni_jobs.openai.chat.answer import text_of
from omni_jobs.openai.job_errors import error_of
from omni_jobs.openai.named_field import named_shape
from omni_jobs.openai.responses.answer import (
    attempt_of,
    calls_of,
    logprobs_shown,
    message,
    message_id,
    response_of,
    stage_of,
    status_of,
    text_part,
)
from omni_jobs.openai.responses.kept_texts import texts_of
from omni_jobs.openai.responses.numbers import (
    ADDED,
    CLOSED,
    CREATED,
    ENDED,
    IN_PROGRESS,
    MOST_CHARS,
    PART_ADDED,
    QUEUED,
    TEXT,
    StreamPlace,
    number_of,
)
from omni_jobs.openai.responses.told_message import Closed, ToldMessage, known_text
from omni_jobs.openai.stream import ClientStream
from omni_jobs.openai.told_text import parts_of
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import JobView
from omni_jobs.watch.new_text import NewText
from omni_jobs.watch.watch import Watch, WatchPlace


class _Event(NamedTuple):
    """An event: its number, its type, and its other fields."""

    number: int
    kind: str
    its: Mapping[str, Any]


class ResponseStream(ClientStream):
    """The events of one response that the client does not have. The first is a comment: there may be none for long."""

    def __init__(
        self,
        jobs: Jobs,
        watch: Watch,
        read: Callable[[], Awaitable[tuple[JobView, Mapping[str, Any]]]],
        place: WatchPlace,
        *,
        after: int = -1,
    ) -> None:
        """``read`` reads the job as the client may see it, and its admitted request.

        ``place`` is the client's among those that watch. ``after`` is the number of the last event that the client has;
        -1: it has none.
        """
        super().__init__()
        self._jobs = jobs
        self._watch = watch
        self._read = read
        self._place = place
        self._last = after  # the number of the last event that the client has
        self._stage = ""
        self._run_id = 0
        self._told = ToldMessage(StreamPlace.after(after))
        self._has_told = False  # a part of the message that is open
        self._is_whole = False  # the attempt has succeeded, and its text was seen to the end

    async def _all(self) -> AsyncGenerator[ServerSentEvent | LargeEvent, None]:
        job, request = await self._read()
        self._stage = stage_of(job, request)
        changes = self._watch.changes(job.id, self._place, with_runs=True)
        async with aclosing(changes):
            glance = await anext(changes, None)
            yield ServerSentEvent(comment="the events of a response")
            for event in await self._made(self._begin(job, request)):
                yield event
            while glance is not None:
                if glance.state is not JobState.QUEUED and self._last < IN_PROGRESS:
                    for event in await self._made(self._in_progress(job, request)):
                        yield event
                for event in self._new(await self._grown(job, glance)):
                    yield event
                if glance.state.is_final:
                    break
                glance = await anext(changes, None)
            job, request = await self._read()
            if job.status.is_final:
                last = await self._made(await self._end(job, request))
                self.has_ended = True
                for event in last:
                    yield event
            elif not self._place.has_left:
                raise error_of(job)  # it goes on

    def _error(self, error: OmniJobsError, status: int | None) -> ServerSentEvent | LargeEvent:
        """Return the event of an error. It has the number of the event before it, so that a client goes on there."""
        shape = named_shape(error, status)
        return _encoded(self._last, "error", {name: shape[name] for name in ("code", "message", "param")})

    async def _made(self, events: Iterable[_Event]) -> list[ServerSentEvent | LargeEvent]:
        """Return those events that the client does not have. A thread makes and encodes them, as they may be large."""
        return await run_sync(lambda: list(self._new(events)))

    def _new(self, events: Iterable[_Event]) -> Iterator[ServerSentEvent | LargeEvent]:
        """Yield those events that the client does not have."""
        for number, kind, its in events:
            if number > self._last:
                self._last = number
                yield _encoded(number, f"response.{kind}", its)

    def _begin(self, job: JobView, request: Mapping[str, Any]) -> Iterator[_Event]:
        for number, kind in ((CREATED, "created"), (QUEUED, "queued")):
            if number > self._last:
                yield _as_it_was(number, kind, job, request)

    def _in_progress(self, job: JobView, request: Mapping[str, Any]) -> Iterator[_Event]:
        yield _as_it_was(IN_PROGRESS, "in_progress", job, request)

    async def _grown(self, job: JobView, glance: Glance) -> Iterable[_Event]:
        """Return the events of the text that a glance shows."""
        run = next((run for run in glance.runs if run.stage == self._stage), None)
        if run is None or not run.attempt:
            return ()
        self._run_id = run.id
        await self._follow(run.attempt, job)
        if self._is_whole:
            return ()
        has_succeeded = self._is_whole = run.state is StageRunState.SUCCEEDED
        texts = NewText(self._jobs, self._watch, job.id)
        new = await texts.since(self._told.seen, run, has_succeeded=has_succeeded)
        return self._tell(job, new, is_whole=has_succeeded)

    async def _follow(self, attempt: int, job: JobView) -> None:
        if attempt == self._told.attempt:
            return
        self._is_whole = False
        if attempts := self._told.follow(attempt):
            chars = self._told.chars
            texts = await run_sync(texts_of, self._jobs, job.id, self._run_id, attempts, chars)
            self._told.compare_with(known_text(texts, chars))

    def _tell(self, job: JobView, new: str, *, is_whole: bool) -> Iterator[_Event]:
        """Yield the events of the attempt's next text."""
        for told in self._told.tell(new, is_whole=is_whole):
            if isinstance(told, Closed):
                yield _closed(job, told.item)
                continue
            self._has_told = True
            yield from _opened(job, told.item)
            chars = told.chars - len(told.text)
            for delta in parts_of(told.text):
                chars += len(delta)
                its = {**_place(job, told.item), "delta": delta, "logprobs": []}
                yield _Event(number_of(told.item, TEXT + chars), "output_text.delta", its)

    async def _end(self, job: JobView, request: Mapping[str, Any]) -> Iterable[_Event]:
        """Return the events of the end, of which most are still to be made.

        Raises TextChanged where the whole text is less than the client was told.
        """
        attempt = attempt_of(job, self._stage)
        if job.status is JobState.COMPLETED:
            text = text_of(job)
            await self._follow(attempt, job)
            rest = [*self._tell(job, text[self._told.seen :], is_whole=True)]
            if self._has_told and self._told.chars > len(text):
                raise TextChanged
            return chain(rest, self._whole(job, request, text))
        return self._failed(job, request, attempt)

    def _failed(self, job: JobView, request: Mapping[str, Any], attempt: int) -> Iterator[_Event]:
        """Yield the end of a job that did not complete."""
        if self._told.item:
            yield _closed(job, self._told.item)
        number = number_of(attempt, ENDED) if attempt else ADDED
        yield _Event(number, "failed", {"response": _shown(job, request, 0)})

    def _whole(self, job: JobView, request: Mapping[str, Any], text: str) -> Iterator[_Event]:
        """Yield what follows the text of a completed job."""
        calls = calls_of(job)
        # Calls alone have no message, also where the number of one of their events looks like that of a delta.
        item = 0 if calls and not text else self._told.item or self._told.attempt
        message_of = item or self._told.attempt
        at = number_of(message_of, TEXT + min(len(text), MOST_CHARS))
        status, reason = status_of(job, self._stage)
        if item:
            part = text_part(text, logprobs_shown(job, self._stage))
            place = _place(job, item)
            said = {"text": text, "logprobs": part["logprobs"]}
            done = message(job, item, "completed" if reason is None else "incomplete", [part])
            yield from _opened(job, item)
            yield _Event(at + 1, "output_text.done", {**place, **said})
            yield _Event(at + 2, "content_part.done", {**place, "part": part})
            yield _Event(at + 3, "output_item.done", {"output_index": place["output_index"], "item": done})
        at += 4
        for index, call in enumerate(calls, message_of - 1 + bool(item)):
            yield from _call(call, index, at)
            at += 4
        yield _Event(at, status, {"response": _shown(job, request, item)})


def _as_it_was(number: int, kind: str, job: JobView, request: Mapping[str, Any]) -> _Event:
    """Return an event of the response as it was before it had made anything."""
    status = "in_progress" if kind == "in_progress" else "queued"
    ends: dict[str, Any] = {
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "usage": None,
        "output": [],
    }
    return _Event(number, kind, {"response": {**_shown(job, request, 0), **ends, "status": status}})


def _opened(job: JobView, item: int) -> Iterator[_Event]:
    place = _place(job, item)
    added = {"output_index": place["output_index"], "item": message(job, item, "in_progress", [])}
    yield _Event(number_of(item, ADDED), "output_item.added", added)
    yield _Event(number_of(item, PART_ADDED), "content_part.added", {**place, "part": text_part("")})


def _closed(job: JobView, item: int) -> _Event:
    """Return the end of a message that nobody writes to its end. What it said is not known at any server."""
    its = {"output_index": item - 1, "item": message(job, item, "incomplete", [])}
    return _Event(number_of(item, CLOSED), "output_item.done", its)


def _call(call: Mapping[str, Any], index: int, at: int) -> Iterator[_Event]:
    place = {"item_id": call["id"], "output_index": index}
    begun = {**call, "status": "in_progress", "arguments": ""}
    arguments = call["arguments"]
    yield _Event(at, "output_item.added", {"output_index": index, "item": begun})
    yield _Event(at + 1, "function_call_arguments.delta", {**place, "delta": arguments})
    yield _Event(at + 2, "function_call_arguments.done", {**place, "name": call["name"], "arguments": arguments})
    yield _Event(at + 3, "output_item.done", {"output_index": index, "item": call})


def _place(job: JobView, item: int) -> dict[str, Any]:
    return {"item_id": message_id(job, item), "output_index": item - 1, "content_index": 0}


def _shown(job: JobView, request: Mapping[str, Any], item: int) -> dict[str, Any]:
    return response_of(job, request, item or None).model_dump()


def _encoded(number: int, kind: str, its: Mapping[str, Any]) -> ServerSentEvent | LargeEvent:
    return line_event(kind, json.dumps({"type": kind, "sequence_number": number, **its}))
