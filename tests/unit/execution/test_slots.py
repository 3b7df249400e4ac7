"""The slots of a worker, for any order of claims and ends."""

from hypothesis import given
from hypothesis import strategies as st

from workers.execution.slots import Slots


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
    held: list[bool] = []
    for is_high, which in steps:
        if which and (slots.for_high if is_high else slots.for_any) > 0:
            slots.take(is_high)
            held.append(is_high)
        elif not which and held:
            slots.free(held.pop(len(held) // 2))
        others = held.count(False)
        assert slots.taken == len(held) <= number
        assert others <= number - slots.kept
        assert slots.for_high == number - len(held)
        assert slots.for_any == min(number - len(held), number - slots.kept - others)
        slots.ask(slots.for_any, slots.for_high - slots.for_any)
        assert (slots.for_any, slots.for_high) == (0, 0), "a claim under way asks for all there are"
        slots.ask(0, 0)
    for is_high in held:
        slots.free(is_high)
    assert (slots.for_any, slots.for_high) == (number - slots.kept, number)
