"""``SOLVERS``: functions that advance an ordinary differential equation by one step, for ``Denoising``.

A solver advances ``state`` from ``start`` to ``end`` along ``velocity(time, state)``. ``euler`` evaluates the
velocity once a step and has order 1, ``midpoint`` twice with order 2, ``rk4`` four times with order 4: the
error of the whole integration shrinks with that power of the step.
"""

from collections.abc import Callable, Mapping

import torch

from workers.models.qwen2_5_omni.parameters import OdeSolver

Velocity = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes a time float32 [] and a state float32 [...]; returns the state's change per unit of time, of its shape."""

SolverStep = Callable[[Velocity, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes (velocity, start, end, state); returns the state at ``end``."""


def _euler(velocity: Velocity, start: torch.Tensor, end: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return state + velocity(start, state) * (end - start)


def _midpoint(velocity: Velocity, start: torch.Tensor, end: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    width = end - start
    middle = state + velocity(start, state) * width / 2
    return state + velocity(start + width / 2, middle) * width


def _rk4(velocity: Velocity, start: torch.Tensor, end: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Advance by Kutta's 3/8 rule, computed in the order of Transformers' ``RungeKutta4ODESolver``."""
    width = end - start
    third, two_thirds = 1 / 3, 2 / 3
    k1 = velocity(start, state)
    k2 = velocity(start + width * third, state + width * k1 * third)
    k3 = velocity(start + width * two_thirds, state + width * (k2 - k1 * third))
    k4 = velocity(end, state + width * (k1 - k2 + k3))
    return state + (k1 + 3 * (k2 + k3) + k4) * width / 8


SOLVERS: Mapping[OdeSolver, SolverStep] = {"euler": _euler, "midpoint": _midpoint, "rk4": _rk4}
