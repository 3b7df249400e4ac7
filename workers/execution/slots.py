"""``Slots``: a worker's slots, and what it knows of the stage runs that wait for them: what its next claim asks for.

It reads and writes nothing. Counted on the event loop; any thread may read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from omni_jobs.jobs import Claim, Claims
from omni_jobs.priority import Priority


@dataclass(eq=False, slots=True)
class _WaitingRuns:
    """What is known of the stage runs that wait, of any jobs or of high ones alone."""

    may_wait: bool = False  # some that nobody has told this worker of since its last claim
    rung: bool = False  # a doorbell has told of some since the last claim that found all there is

    def note(self, more: bool, room: int) -> bool:
        """Note the answer to a claim, and the room after it; return whether to ring for other workers."""
        is_for_others = self.rung and more and room <= 0
        self.may_wait |= more
        self.rung &= self.may_wait and room > 0
        return is_for_others


class Slots:
    """Counts a worker's slots. Only stage runs of high jobs may take the ``kept`` ones, and they take these first.

    None is free while the stage is paused, while a suspect runs or waits for the others to end, and once closed.
    """

    def __init__(self, number: int, kept: int = 0) -> None:
        """All are free. Of a worker with few slots one at least is not kept, because other jobs would never run."""
        self.number = number
        self.kept = min(kept, number - 1)
        self.taken = 0
        self.is_paused = False  # the stage
        self.is_closed = False
        self._taken_by_high = 0
        self._asked = 0  # how many stage runs of any jobs the claim under way asks for
        self._asked_of_high = 0  # and how many further ones of high jobs
        self._asked_all_for_high = False  # the two together are all the room for high jobs
        self._any, self._high = _WaitingRuns(), _WaitingRuns()
        self._suspect_runs = False  # nothing is claimed beside it
        self._suspect_waits = False  # one is set apart for this worker, until nothing runs here

    @property
    def for_any(self) -> int:
        """How many are free for stage runs of any jobs."""
        by_others = self.taken - self._taken_by_high
        return min(self.number - self.kept - by_others - self._asked, self.for_high) if self._may_claim else 0

    @property
    def for_high(self) -> int:
        """How many are free for stage runs of high jobs: all that are free."""
        return self.number - self.taken - self._asked - self._asked_of_high if self._may_claim else 0

    @property
    def _may_claim(self) -> bool:
        is_full = self._suspect_runs or (self._suspect_waits and self.taken > 0)
        return not (self.is_closed or self.is_paused or is_full)

    # What may wait.

    def ring(self, priority: Priority) -> None:
        """Note that stage runs may wait; HIGH: those of high jobs."""
        waiting = self._high if priority is Priority.HIGH else self._any
        waiting.may_wait = waiting.rung = True

    def ring_for_all(self) -> None:
        """Note that stage runs of any and of high jobs may wait."""
        self.ring(Priority.NORMAL)
        if self.kept:
            self.ring(Priority.HIGH)

    def pause(self, is_paused: bool) -> None:
        """Free none while the stage is paused; when it is resumed, any stage runs may wait."""
        self.is_paused = is_paused
        self._may_wait()

    def close(self) -> None:
        """Free none any more."""
        self.is_closed = True

    def _may_wait(self) -> None:
        self._any.may_wait = True
        self._high.may_wait |= self.kept > 0

    # Claims.

    def begin_claim(self) -> tuple[int, int]:
        """Set free slots aside for a claim, if stage runs may wait that may take them. Call ``end_claim`` after it.

        Return how many stage runs of any jobs to claim, and how many further ones of high jobs; (0, 0): claim nothing.
        """
        at_most = self.for_any if self._any.may_wait else 0
        of_high = self.for_high - at_most if self._high.may_wait else 0
        if at_most + of_high > 0:
            self._asked, self._asked_of_high, self._asked_all_for_high = at_most, of_high, self._high.may_wait
            self._any.may_wait &= not at_most
            self._high.may_wait = False
        return at_most, of_high

    def end_claim(self, claims: Claims) -> Sequence[Priority]:
        """Take slots for what the claim has given.

        Return NORMAL where stage runs wait for which no slot is free and of which no doorbell has told other workers,
        HIGH where such of high jobs do.
        """
        at_most, of_high = self._asked, self._asked_of_high
        self._asked = self._asked_of_high = 0
        self._suspect_waits = claims.suspect_waits
        if claims.suspect_waits:
            self._may_wait()
        for claim in claims.claims:
            self._take(claim)
        for_others = []
        if at_most and self._any.note(claims.more, self.for_any):
            for_others.append(Priority.NORMAL)
        more_high = claims.more_high if of_high else claims.more
        if self._asked_all_for_high and self._high.note(more_high, self.for_high):
            for_others.append(Priority.HIGH)
        return for_others

    def _take(self, claim: Claim) -> None:
        self.taken += 1
        self._taken_by_high += claim.is_high
        self._suspect_runs = claim.alone

    def free(self, claim: Claim) -> None:
        """Free the slot of a stage run that ended."""
        self.taken -= 1
        self._taken_by_high -= claim.is_high
        self._suspect_runs = False  # if one ran, it was this one
