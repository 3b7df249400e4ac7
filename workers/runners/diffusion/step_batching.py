"""``StepBatching``: the policy that chooses the rows of a diffusion engine's next step. It does nothing else.

Two rows lead the steps. The **quickest** has the least product of its work left and its work in all, so a short job
that comes while long ones run ends soon, even beside one of them that is nearly done: each waits in proportion to its
size. The **oldest** came first, so none waits for ever. A step that holds both needs no turns. Where they do not fit
into one step, the quickest leads while the units of its steps are within twice those that a step of the oldest takes,
and then the oldest leads one.

The leader's step has other rows too, as many as fit: rows of its group alone, the other leader first, then those
begun before those that are not, because what has begun holds memory, and each in order of age.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from workers.runners.diffusion.model import Cost
from workers.runners.diffusion.step_budget import StepBudget

_QUICKEST_SHARE = 2  # units of steps without the oldest row, for each unit of a step with it
_LEAST_PART = 8  # a step counts as at least this part of the budget, because no step is free


class SteppingRow(Protocol):
    """A row that waits for its next step, as the policy sees it."""

    @property
    def cost(self) -> Cost:
        """What it takes."""

    @property
    def steps_left(self) -> int:
        """How many steps are left, at least one."""

    @property
    def begun(self) -> bool:
        """Whether the model keeps it already."""


RowT = TypeVar("RowT", bound=SteppingRow)


class StepBatching:
    """Chooses the rows of each next step. It remembers one number: what the oldest row is owed.

    Let W be the budget's units, or those of the largest row where they are more. Every step takes at most W. Steps
    without the oldest row take at most 3 W between two steps with it, a step counting as an eighth of the budget at
    least. So a row ends at the latest when 4 W units have been taken for each step that was left to it and to the
    older ones when it came.
    """

    def __init__(self, budget: StepBudget) -> None:
        """Keep each step within ``budget``, which may change between two of them."""
        self._budget = budget
        self._owed = 0  # units of steps without the oldest row since the last one with it

    def choose(self, rows: Sequence[RowT]) -> list[RowT]:
        """Return the rows of the next step, its leader first; ``rows`` are all that wait for one, the oldest first."""
        if not rows:
            return []
        oldest = rows[0]
        quickest = min(rows, key=_slowness)
        step = self._fill(quickest, oldest, rows)
        if oldest in step:
            self._owed = 0
            return step
        oldest_step = self._fill(oldest, quickest, rows)
        if self._owed >= _QUICKEST_SHARE * self._weight(oldest_step):
            self._owed = 0
            return oldest_step
        self._owed += self._weight(step)
        return step

    def _fill(self, leader: RowT, second: RowT, rows: Sequence[RowT]) -> list[RowT]:
        """Return a step of the leader and of as many others of its group as the budget has room for."""
        step, units = [leader], leader.cost.units
        begun = [row for row in rows if row.begun]
        waiting = [row for row in rows if not row.begun]
        for row in (second, *begun, *waiting):
            if len(step) >= self._budget.max_rows:
                break
            fits = row.cost.group == leader.cost.group and units + row.cost.units <= self._budget.units
            if fits and row not in step:
                step.append(row)
                units += row.cost.units
        return step

    def _weight(self, step: Sequence[RowT]) -> int:
        return max(sum(row.cost.units for row in step), self._budget.units // _LEAST_PART)


def _slowness(row: SteppingRow) -> int:
    return row.steps_left * row.cost.units * row.cost.steps * row.cost.units
