"""The policy of the diffusion engine's steps: nobody waits for ever, short jobs end soon, and the budget holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.runners.diffusion.model import Cost
from workers.runners.diffusion.step_batching import StepBatching
from workers.runners.diffusion.step_budget import StepBudget


@dataclass(eq=False)
class Row:
    """A row whose steps the policy's ``run`` takes; time is counted in units, those of all steps taken."""

    cost: Cost
    came: int = 0
    steps_left: int = field(init=False)
    ended: int | None = None

    def __post_init__(self) -> None:
        self.steps_left = self.cost.steps

    @property
    def begun(self) -> bool:
        return self.steps_left < self.cost.steps


def row(units: int = 1, steps: int = 10, group: str = "one") -> Row:
    return Row(Cost(units, steps, group))


def run(
    budget: StepBudget,
    coming: Sequence[tuple[int, Row]],
    check: Callable[[list[Row], list[Row]], None] = lambda rows, step: None,
    time_of: Callable[[list[Row]], int] = lambda step: sum(row.cost.units for row in step),
) -> int:
    """Take steps until the rows, which come before the step of that number, are done; return the time it took."""
    batching, rows, waiting = StepBatching(budget), list[Row](), sorted(coming, key=lambda each: each[0])
    time = number = 0
    while rows or waiting:
        while waiting and waiting[0][0] <= number:
            new = waiting.pop(0)[1]
            new.came = time
            rows.append(new)
        step = batching.choose(rows)
        check(rows, step)
        time += time_of(step)
        number += 1
        for each in step:
            each.steps_left -= 1
            if not each.steps_left:
                each.ended = time
                rows.remove(each)
    return time


costs = st.builds(Cost, st.integers(1, 40), st.integers(1, 12), st.sampled_from("abc"))
arrivals = st.lists(st.tuples(st.integers(0, 60), st.builds(Row, costs)), min_size=1, max_size=25)
budgets = st.builds(StepBudget, st.integers(1, 60), st.integers(1, 6))


@settings(deadline=None)
@given(budgets, arrivals)
def test_a_step_keeps_to_the_budget_and_to_one_group(budget: StepBudget, coming: list[tuple[int, Row]]) -> None:
    def check(rows: list[Row], step: list[Row]) -> None:
        assert bool(step) == bool(rows)
        if step:
            assert len(set(step)) == len(step) <= budget.max_rows
            assert set(step) <= set(rows)
            assert len(step) == 1 or sum(each.cost.units for each in step) <= budget.units
            assert len({each.cost.group for each in step}) == 1

    run(budget, coming, check)


@settings(deadline=None)
@given(budgets, arrivals)
def test_no_room_of_the_leaders_group_is_left_unused(budget: StepBudget, coming: list[tuple[int, Row]]) -> None:
    def check(rows: list[Row], step: list[Row]) -> None:
        room = budget.units - sum(each.cost.units for each in step)
        left = [each for each in rows if each not in step and each.cost.group == step[0].cost.group] if step else []
        assert len(step) in (0, budget.max_rows) or all(each.cost.units > room for each in left)

    run(budget, coming, check)


@settings(deadline=None)
@given(budgets, arrivals)
def test_every_row_ends_within_the_stated_bound(budget: StepBudget, coming: list[tuple[int, Row]]) -> None:
    """4 W units for each step that was left to it and to the older ones when it came, whatever comes later."""
    largest = max(budget.max_units, *(each.cost.units for _, each in coming), 1)
    ahead: dict[Row, int] = {}

    def check(rows: list[Row], step: list[Row]) -> None:
        for number, each in enumerate(rows):
            ahead.setdefault(each, sum(older.steps_left for older in rows[: number + 1]))

    run(budget, coming, check, lambda step: max(sum(each.cost.units for each in step), budget.units // 8) * bool(step))
    for _, each in coming:
        assert each.ended is not None
        assert each.ended - each.came <= 4 * largest * ahead[each]


@settings(deadline=None)
@given(budgets, arrivals)
def test_the_oldest_leads_or_rides_after_what_it_is_owed(budget: StepBudget, coming: list[tuple[int, Row]]) -> None:
    """Between two steps with the oldest row, those without take at most three of the largest, never more."""
    largest = max(budget.max_units, *(each.cost.units for _, each in coming), 1)
    without = [0]

    def check(rows: list[Row], step: list[Row]) -> None:
        if rows and rows[0] in step:
            without[0] = 0
        elif step:
            without[0] += max(sum(each.cost.units for each in step), budget.units // 8)
            assert without[0] <= 3 * largest

    run(budget, coming, check)


@pytest.mark.parametrize("group", ["one", "other"])
@pytest.mark.parametrize("fit", [1, 2, 4, 8, 12])
def test_a_short_job_ends_within_twice_its_time_alone(group: str, fit: int) -> None:
    """Four steps come while eight rows of fifty run; a step takes its time whether it is full or not, as on a GPU."""
    for arrival in range(30, 60):
        long, short = [row(steps=50) for _ in range(8)], row(steps=4, group=group)
        run(StepBudget(fit, 16), [*((0, each) for each in long), (arrival, short)], time_of=bool)
        assert short.ended is not None
        assert short.ended - short.came <= 2 * 4


def test_the_long_jobs_lose_no_more_than_the_short_one_takes() -> None:
    def time(*coming: tuple[int, Row]) -> int:
        return run(StepBudget(2, 16), coming)

    assert time(*((0, row(steps=50)) for _ in range(8)), (70, row(steps=4))) == 404


def test_a_stream_of_short_jobs_leaves_a_third_to_the_oldest() -> None:
    """One row fits a step; short jobs come without end."""
    long = row(steps=50)
    run(StepBudget(1, 8), [(0, long), *((4 * n, row(steps=4)) for n in range(100))])
    assert long.ended is not None
    assert long.ended <= 3 * 50 + 1


def test_small_steps_are_not_free() -> None:
    """A large row is not kept waiting by as many small steps as its units."""
    large, steps = row(800, steps=2, group="large"), list[list[Row]]()
    small = [(0, row(1, steps=200, group="small"))]
    run(StepBudget(800, 8), [(0, large), *small], lambda rows, step: steps.append(step))
    assert [large in step for step in steps[:34]] == [*[False] * 16, True, *[False] * 16, True]


def lead(*rows: Row, units: int = 4, max_rows: int = 8) -> list[int]:
    """Return the numbers of the rows in the first step of these."""
    return [rows.index(each) for each in StepBatching(StepBudget(units, max_rows)).choose(rows)]


def begun(units: int = 1, steps: int = 10, group: str = "one", done: int = 1) -> Row:
    made = row(units, steps, group)
    made.steps_left -= done
    return made


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        ([], []),
        ([row(100)], [0]),  # over the budget: alone
        ([row(), row(), row(), row(), row()], [0, 1, 2, 3]),  # equals go in order of age
        ([row(steps=50), row(steps=4)], [1, 0]),  # the quickest leads, and the oldest rides along
        ([row(2), row(3, 1), row(2), row(1)], [1, 3]),  # the oldest does not fit beside it, a younger one does
        ([begun(2), row(), begun(2), row()], [1, 0, 3]),
        ([row(steps=9), row(), row(), row(), begun()], [0, 4, 1, 2]),  # what has begun goes on first
        ([row(group="a"), row(group="b"), row(group="a")], [0, 2]),
        ([row(1, 40), row(3, 10)], [1, 0]),  # 30 units of work are less than 40
        ([begun(steps=50, done=49), row(steps=4), row(2)], [1, 0, 2]),  # the last step of a long row can wait
    ],
)
def test_whom_the_first_step_holds(rows: list[Row], chosen: list[int]) -> None:
    assert lead(*rows) == chosen


def test_at_most_so_many_rows() -> None:
    assert lead(row(), row(), row(), max_rows=2) == [0, 1]


# The budget


def test_a_lack_of_memory_halves_the_budget_and_steps_restore_it() -> None:
    budget = StepBudget(100, 8)
    budget.shrink(90)
    assert budget.units == 45
    budget.shrink(120)  # of a step chosen before
    assert budget.units == 45
    seen = []
    for _ in range(64 * 6):
        budget.count_step()
        seen.append(budget.units)
    assert seen[::64] == [45, 56, 70, 87, 100, 100]
    budget.shrink(3)
    budget.shrink(1)
    assert budget.units == 1
