"""The solvers on an equation whose solution is known, and what a job may choose."""

import math
from itertools import pairwise
from typing import get_args

import pytest
import torch
from pydantic import ValidationError

from workers.models.qwen2_5_omni.ode import SOLVERS
from workers.models.qwen2_5_omni.parameters import EVALUATIONS_PER_STEP, OdeParameters, OdeSolver


def turning(time: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """y' = 3 t² y, so y(1) = e for y(0) = 1."""
    return 3 * time**2 * state


def advance(
    solver: OdeSolver, start: torch.Tensor, end: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, list[float]]:
    """Return the state at ``end``, and the times at which the solver asked for the velocity."""
    times: list[float] = []
    step = SOLVERS[solver](start, end, state)
    evaluation = next(step)
    while True:
        times.append(float(evaluation[0]))
        try:
            evaluation = step.send(turning(*evaluation))
        except StopIteration as done:
            return done.value, times


def error(solver: OdeSolver, steps: int) -> float:
    times = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    state = torch.ones((), dtype=torch.float64)
    for start, end in pairwise(times):
        state, _ = advance(solver, start, end, state)
    return abs(float(state) - math.e)


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_twice_the_steps_divide_the_error_by_two_to_the_order(solver: OdeSolver, order: int) -> None:
    assert math.log2(error(solver, 64) / error(solver, 128)) == pytest.approx(order, abs=0.1)


def test_a_step_evaluates_the_velocity_as_often_as_documented() -> None:
    assert EVALUATIONS_PER_STEP.keys() == SOLVERS.keys() == set(get_args(OdeSolver))
    for solver in SOLVERS:
        _, times = advance(solver, torch.tensor(0.25), torch.tensor(0.75), torch.ones(()))
        assert len(times) == EVALUATIONS_PER_STEP[solver]
        assert 0.25 <= min(times) <= max(times) <= 0.75


def test_a_job_may_choose_every_solver() -> None:
    assert OdeParameters().solver == "rk4"
    assert OdeParameters(steps=11).evaluations == 40
    assert OdeParameters(steps=11, solver="midpoint").evaluations == 20
    assert OdeParameters(steps=11, solver="euler").evaluations == 10
    with pytest.raises(ValidationError, match=r"solver[\s\S]*'rk4', 'midpoint' or 'euler'"):
        OdeParameters.model_validate({"solver": "heun"})
