"""``WaitingRuns``: what an executor knows of the stage runs that wait, of any jobs or of high ones alone."""

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class WaitingRuns:
    """Whether some may wait, and whether a doorbell has told of them."""

    may_wait: bool = False  # some that nobody has told this worker of since its last claim
    rung: bool = False  # since the last claim that found all there is

    def note(self, more: bool, room: int) -> bool:
        """Note the answer to a claim, and the room after it; return whether to ring for other workers."""
        is_for_others = self.rung and more and room <= 0
        self.may_wait |= more
        self.rung &= self.may_wait and room > 0
        return is_for_others
