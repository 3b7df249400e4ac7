"""The answers of a bulk as the client reads them, and as it puts them together when it sends the bulk several times."""

from __future__ import annotations

import json
from collections.abc import Sequence

from omni_jobs.client.parsed import parsed
from omni_jobs.client.repeats import answered_once, pause_before_retry
from omni_jobs.client.steps import HttpRequest, Item, Items, Pause, Steps, next_chunk
from omni_jobs.errors import DatabaseUnavailable, OmniJobsError, ServerUnavailable, StorageFull, StorageUnavailable
from omni_jobs.views import BulkAnswer

BULK_PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # before each repetition of a bulk: a server is started anew meanwhile
_OUTAGES = {kind.code for kind in (DatabaseUnavailable, StorageUnavailable, StorageFull)}


class BulkReader:
    """Reads the answers to the lines of a bulk from the streamed answer to the latest request."""

    def __init__(self) -> None:
        self._begun = b""  # of a line that has not ended yet
        self._lines: list[bytes] = []  # that were read and not returned yet, the latest first

    def next_answer(self) -> Steps[BulkAnswer | None]:
        """Return the answer to the next line; None after the last answer, which has the counts.

        Raises the error that ended the bulk early, and ServerUnavailable if the last answer is missing.
        """
        while not self._lines:
            chunk = yield from next_chunk()
            if not chunk:  # what follows the last line end is an answer that was cut off
                raise ServerUnavailable("the answers to the bulk broke off before the last one")
            # Not splitlines: a string in JSON may hold the other characters at which that ends a line.
            *ended, self._begun = (self._begun + chunk).split(b"\n")
            self._lines = ended[::-1]
        answer = self._lines.pop()
        if b'"lines"' not in answer[:9]:
            return parsed(BulkAnswer, answer)
        if (error := json.loads(answer).get("error")) is not None:
            raise OmniJobsError.from_dict(error)
        return None


def answers_of_tries(request: HttpRequest, pauses_s: Sequence[float]) -> Items[BulkAnswer]:
    """Give the answer to each line of a bulk once, in order, and send the bulk again while that may help.

    ``request`` has the whole bulk, and the same idempotency key each time. There is a try after each of the pauses.
    From the first line that an outage has met, the answers wait for the next try, which makes the jobs; without one
    they are given as they are. Raises the error of the last try, if that failed.
    """
    pauses = iter(pauses_s)
    answered = 0  # the last line whose answer was given
    while True:
        next_pause = next(pauses, None)
        waiting: list[BulkAnswer] = []  # the server ends a bulk soon after an outage, so they are few
        pause = None
        try:
            yield from answered_once(request)
            reader = BulkReader()
            while (answer := (yield from reader.next_answer())) is not None:
                if answer.line <= answered:
                    continue
                is_met = answer.error is not None and answer.error.code in _OUTAGES
                if waiting or (is_met and next_pause is not None):
                    waiting.append(answer)
                    continue
                answered = answer.line
                yield Item(answer)
        except OmniJobsError as error:
            pause = pause_before_retry(error, next_pause)
            if pause is None:
                for answer in waiting:
                    yield Item(answer)
                raise
        if pause is None:
            for answer in waiting:
                yield Item(answer)
            return
        yield Pause(pause)
