"""The answers of a bulk as the client reads them, and as it puts them together when it sends the bulk several times."""

import json
import time
from collections.abc import Callable, Iterable, Iterator

from omni_jobs.client.failed_calls import pause_before_retry
from omni_jobs.errors import DatabaseUnavailable, OmniJobsError, ServerUnavailable, StorageFull, StorageUnavailable
from omni_jobs.views import BulkAnswer

BULK_PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # before each repetition of a bulk: a server is started anew meanwhile
_OUTAGES = {kind.code for kind in (DatabaseUnavailable, StorageUnavailable, StorageFull)}


def answers_in(chunks: Iterable[bytes]) -> Iterator[BulkAnswer]:
    """Yield the answers to the lines of a bulk from the bytes of the server's answer.

    Raises the error that ended the bulk early, and ServerUnavailable if the last answer, with the counts, is missing.
    """
    for answer in _lines(chunks):
        if b'"lines"' not in answer[:9]:
            yield BulkAnswer.model_validate_json(answer)
            continue
        if (error := json.loads(answer).get("error")) is not None:
            raise OmniJobsError.from_dict(error)
        return
    raise ServerUnavailable("the answers to the bulk broke off before the last one")


def answers_of_tries(send: Callable[[], Iterator[BulkAnswer]]) -> Iterator[BulkAnswer]:
    """Yield the answer to each line of a bulk once, in order, and send the bulk again while that may help.

    ``send`` sends the whole bulk, with the same idempotency key each time, and yields its answers. From the first
    line that an outage has met, the answers wait for the next try, which makes the jobs; without one they are yielded
    as they are. Raises the error of the last try, if that failed.
    """
    pauses = iter(BULK_PAUSES_S)
    answered = 0  # the last line whose answer was yielded
    while True:
        waiting: list[BulkAnswer] = []  # the server ends a bulk soon after an outage, so they are few
        try:
            for answer in send():
                if answer.line <= answered:
                    continue
                if waiting or (answer.error is not None and answer.error.code in _OUTAGES):
                    waiting.append(answer)
                    continue
                answered = answer.line
                yield answer
        except OmniJobsError as error:
            pause = pause_before_retry(error, next(pauses, None))
            if pause is None:
                yield from waiting
                raise
        else:
            yield from waiting
            return
        time.sleep(pause)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split at ``\\n`` alone, because a string in JSON may hold the other characters at which ``str`` ends a line.

    What follows the last ``\\n`` is an answer that was cut off, and no line.
    """
    begun = b""
    for chunk in chunks:
        *ended, begun = (begun + chunk).split(b"\n")
        yield from ended
