"""``StageParameters``: what a job may set per stage, one class for each runner or component.

A stage config gives the defaults; a job's ``stages`` object overrides them field by field. Both are checked against
the same class, which refuses unknown names.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class StageParameters(BaseModel):
    """Base class of stages' parameters. Refuses unknown names, NaN, and values of another type.

    quantities  whole numbers that a class computes of its parameters, such as the pixels of width and height: the name
                of a property → those parameters. A stage's ``limits`` may bound them, too
    instead_of  a parameter → the one in whose place it stands unless it is None. It is None by default,
                and a job that sets both is refused
    work        the numbers in proportion to whose product the work of a stage run grows: the name of a parameter or
                property → what None counts as. ``omni_jobs.requests.cost`` makes a job's cost of them
    """

    quantities: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    instead_of: ClassVar[Mapping[str, str]] = {}
    work: ClassVar[Mapping[str, int]] = {}

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @classmethod
    def changed(cls, values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` with ``changes``: of two parameters in one place the one that is changed."""
        chosen = {**values, **changes}
        for pair in cls.instead_of.items():
            for mine, other in (pair, pair[::-1]):
                if changes.get(mine) is not None and other not in changes:
                    chosen.pop(other, None)
        return chosen
