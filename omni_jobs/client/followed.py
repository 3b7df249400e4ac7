"""``followed``: a job's events as they come, over as many connections as that takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omni_jobs.client import repeats
from omni_jobs.client.repeats import error_of, pause_before_retry
from omni_jobs.client.steps import HttpRequest, Item, Items, Pause, next_chunk, sent
from omni_jobs.errors import OmniJobsError, ServerUnavailable
from omni_jobs.states import JobState

PING = "ping"
_SILENCE_S = 15.0  # the server sends a comment so often
_ENDS = frozenset(f"job.{state.value}" for state in JobState if state.is_final)


@dataclass(frozen=True)
class JobEvent:
    """An event of a job's stream. docs/api.md lists them.

    name  what happened, such as ``text`` or ``job.completed``; ``ping``: nothing, the server only shows that it lives
    data  what the event tells
    id    the number of an event that is kept with the job; None: it is not kept
    """

    name: str
    data: Mapping[str, Any]
    id: int | None = None

    @property
    def is_end(self) -> bool:
        """Whether the job has ended with it."""
        return self.name in _ENDS


class _Blocks:
    """Reads the events in the bytes of one connection."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, chunk: bytes) -> Iterator[JobEvent]:
        """Yield the events that are whole with these bytes. Raises ServerUnavailable for what is no such stream."""
        *blocks, self._rest = (self._rest + chunk).split(b"\n\n")
        for block in blocks:
            lines = dict(line.partition(": ")[::2] for line in block.decode(errors="replace").split("\n"))
            if "" in lines:  # a comment
                yield JobEvent(PING, {})
            if "data" in lines:
                try:
                    number = int(lines["id"]) if "id" in lines else None
                    yield JobEvent(lines.get("event", "message"), json.loads(lines["data"]), number)
                except ValueError:
                    raise ServerUnavailable("the server streams what are no events of a job") from None


class _Place:
    """What a client has of a job's events, so that a further connection goes on there."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[int, int]] = {}  # of each stage the attempt and its characters
        self._last_id = 0
        self._last: dict[tuple[str, str], Mapping[str, Any]] = {}  # of each kind the last, of a stage or an artifact

    def note(self, event: JobEvent) -> bool:
        """Note that the client has an event. Return whether it tells anything new.

        Each connection begins with the job, and with the state, the progress and the artifacts of its stages, which
        the client may have.
        """
        if event.id is not None:
            self._last_id, last = max(event.id, self._last_id), self._last_id
            return event.is_end or event.id > last
        if event.name == "text":
            self._texts[event.data["stage"]] = (event.data["attempt"], event.data["offset"] + len(event.data["text"]))
        if event.name in ("text", PING) or event.is_end:
            return True
        of = (event.name, event.data.get("stage") or event.data.get("name") or "")
        last_data = self._last.get(of)
        self._last[of] = event.data
        return last_data is None or (event.name != "job" and event.data != last_data)

    @property
    def query(self) -> dict[str, str]:
        """The query that asks for what follows."""
        texts = [f"{stage}:{attempt}:{chars}" for stage, (attempt, chars) in self._texts.items()]
        return {"starting_after": str(self._last_id), **({"text_from": ",".join(texts)} if texts else {})}


def followed(path: str, *, with_pings: bool) -> Items[JobEvent]:
    """Yield a job's events until its end, those of ``path``. Go on with another connection where one breaks.

    What a further connection tells again is left out. Raises the server's error, and ServerUnavailable where
    connections tell nothing new, and none lasts until the server's first ping: a few at the beginning, and later those
    of a minute.
    """
    place = _Place()
    pauses = iter(repeats.PAUSES_S)
    while True:
        request = HttpRequest(
            "GET",
            path,
            params=place.query,
            headers={"Accept": "text/event-stream"},
            is_streamed=True,
            held_s=_SILENCE_S,
        )
        try:
            response = yield from sent(request)
            if not response.is_success:
                raise error_of(response)
            blocks = _Blocks()
            while chunk := (yield from next_chunk()):
                for event in blocks.read(chunk):
                    if event.name == "error":
                        raise OmniJobsError.from_dict(event.data["error"])
                    is_new = place.note(event)
                    if is_new and (event.name != PING or with_pings):
                        yield Item(event)
                    if event.is_end:
                        return
                    if is_new:
                        pauses = iter(repeats.WAIT_PAUSES_S)
            raise ServerUnavailable(f"the stream of {path} ended before the job")
        except OmniJobsError as error:
            pause = pause_before_retry(error, next(pauses, None))
            if pause is None:
                raise
        yield Pause(pause)
