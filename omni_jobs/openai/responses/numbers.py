"""The ``sequence_number`` of an event of a response: a function of the job, so that no event has to be kept.

    0 created, 1 queued, 2 in_progress
    of an attempt, from its first number on:
        3            its message is added
        4            the message's content is added
        5 + n        a delta, which ends with the n-th character of the message
        6 + n …      what follows its n characters: their end, calls of tools, the end of the response
        CLOSED       its message is closed, because the attempt was lost, or the job did not complete
        ENDED        the end of a response whose job did not complete

An attempt has 100 million numbers, so that those of 21 fit into 32 bits, as some clients have them.
"""

from typing import Final, NamedTuple

CREATED: Final = 0
QUEUED: Final = 1
IN_PROGRESS: Final = 2
ADDED: Final = 3
PART_ADDED: Final = 4
TEXT: Final = 5
OF_ATTEMPT: Final = 100_000_000
CLOSED: Final = OF_ATTEMPT - 2
ENDED: Final = OF_ATTEMPT - 1
MOST_CHARS: Final = OF_ATTEMPT - 1_000_000
"""The characters of a text that deltas tell. The end of the text has all of it."""

MOST: Final = (1 << 53) - 1
"""The greatest number that every client has."""


def number_of(attempt: int, place: int) -> int:
    """Return the number of an event of an attempt; of attempt 0, where none was begun, that of the first."""
    return (max(attempt, 1) - 1) * OF_ATTEMPT + place


class StreamPlace(NamedTuple):
    """Where a client is that has an event: the attempt whose message it has last, and how much of that.

    chars  the characters of the message; None: it has no message, or it has it to its end
    """

    attempt: int
    chars: int | None

    @classmethod
    def after(cls, number: int) -> "StreamPlace":
        """Return the place of a client whose last event has this number; -1: it has none."""
        attempt, place = divmod(max(number, 0), OF_ATTEMPT)
        is_open = ADDED <= place < CLOSED
        return cls(attempt + 1, max(0, place - TEXT) if is_open else None)
