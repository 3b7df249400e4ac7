"""The slots of a worker, for any order of claims and ends. test_executor_claims.py has what doorbells do to claims."""

from hypothesis import given
from hypothesis import strategies as st

from omni_jobs.jobs import Claim, Claims
from omni_jobs.priority import Priority
from workers.execution.slots import Slots


def claim(*, is_high: bool = False, alone: bool = False) -> Claim:
    return Claim(1, "job-1", "first", 1, "echo", {}, (), 0, {}, False, alone, None, is_high)


@given(
    number=st.integers(1, 6),
    kept=st.integers(0, 8),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60),
)
def test_others_never_hold_a_kept_slot_and_nobody_more_than_there_are(
    number: int, kept: int, steps: list[tuple[bool, int]]
) -> None:
    """A step is a stage run that comes, if there is room, or the end of one that runs."""
    slots = Slots(number, kept)
    assert slots.kept == min(kept, number - 1)
    held: list[Claim] = []
    for is_high, which in steps:
        slots.ring(Priority.NORMAL)
        slots.ring(Priority.HIGH)
        free, for_high = slots.for_any, slots.for_high
        assert slots.begin_claim() == (free, for_high - free)
        assert (slots.for_any, slots.for_high) == (0, 0), "a claim under way asks for all there are"
        granted = [claim(is_high=is_high)] if which and (for_high if is_high else free) > 0 else []
        slots.end_claim(Claims(granted))
        held += granted
        if not which and held:
            slots.free(held.pop(len(held) // 2))
        others = sum(not each.is_high for each in held)
        assert slots.taken == len(held) <= number
        assert others <= number - slots.kept
        assert slots.for_high == number - len(held)
        assert slots.for_any == min(number - len(held), number - slots.kept - others)
    for each in held:
        slots.free(each)
    assert (slots.for_any, slots.for_high) == (number - slots.kept, number)


def test_nothing_is_claimed_while_no_slot_is_free_for_what_waits() -> None:
    slots = Slots(2, kept=1)
    assert slots.begin_claim() == (0, 0), "nobody has told of any"
    slots.ring(Priority.NORMAL)
    assert slots.begin_claim() == (1, 0)
    assert slots.end_claim(Claims([claim()], more=True)) == [Priority.NORMAL]
    slots.ring(Priority.NORMAL)
    assert slots.begin_claim() == (0, 0), "the other slot is kept"
    slots.ring(Priority.HIGH)
    slots.pause(True)
    assert slots.begin_claim() == (0, 0)
    slots.pause(False)
    assert slots.begin_claim() == (0, 1)
    assert slots.end_claim(Claims((), suspect_waits=True)) == []
    assert (slots.for_any, slots.for_high) == (0, 0), "it drains for the suspect"
    slots.free(claim())
    assert slots.begin_claim() == (1, 1)
    assert slots.end_claim(Claims([claim(alone=True)])) == []
    assert slots.for_high == 0, "nothing is claimed beside it"
    slots.free(claim(alone=True))
    assert (slots.for_any, slots.for_high) == (1, 2)
    slots.close()
    slots.ring_for_all()
    assert slots.begin_claim() == (0, 0)
