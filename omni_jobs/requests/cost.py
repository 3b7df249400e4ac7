"""The cost of a job: how much work it asks for, in proportion to a job that sets no parameter. Pure.

A tenant pays for a turn by it (``omni_jobs.jobs.turns``), so that a few large jobs weigh as much as many small ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from omni_jobs.pipelines.stage_config import StageConfig

LEAST: Final = 0.25
"""The cost of the smallest job, because what its prompt takes does not shrink with it."""

MOST: Final = 1000.0

_PIXELS: Final = "pixels"


def cost_of(stages: Sequence[StageConfig], parameters: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the cost of a job of these stages: 1 with the pipeline's own parameters; from LEAST to MOST.

    ``parameters`` are those that the job sets, by stage, and have been checked. A stage costs the product of its
    ``StageParameters.work``, each by its default, and the job costs as much as its dearest stage: there it stands in
    others' way most. The pixels of a picture count at every stage, whichever one they are set for, because the picture
    goes through all of them. Stages whose parameters declare no ``work`` do not count; of these alone a job costs 1.
    """
    costs: list[float] = []
    pixels: list[float] = []
    for stage in stages:
        work = stage.parameters_type.work
        if not work:
            continue
        cost = 1.0
        if given := parameters.get(stage.name):
            chosen, usual = stage.parameters_with(given), stage.parameters_with({})
            for name, if_none in work.items():
                ratio = _amount(chosen, name, if_none) / _amount(usual, name, if_none)
                if name == _PIXELS:
                    pixels.append(ratio)
                else:
                    cost *= ratio
        costs.append(cost)
    return min(MOST, max(LEAST, max(costs, default=1.0) * max(pixels, default=1.0)))


def _amount(parameters: object, name: str, if_none: int) -> float:
    """Return a number of the parameters, at least 1, because nothing is free."""
    amount = getattr(parameters, name)
    return max(1.0, float(if_none if amount is None else amount))
