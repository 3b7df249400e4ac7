"""``SOLVERS``: functions that advance an ordinary differential equation by one step, for ``Denoiser``.

A solver advances ``state`` from ``start`` to ``end``. It is a generator: it yields each (time, state) of which it
needs the velocity, is sent the velocity, and returns the state at ``end``. So rows with different solvers can be
evaluated together. ``euler`` needs the velocity once a step and has order 1, ``midpoint`` twice with order 2, ``rk4``
four times with order 4: the error of the whole integration shrinks with that power of the step.
"""

from collections.abc import Callable, Generator, Mapping

import torch

from workers.models.qwen2_5_omni.parameters import OdeSolver

Evaluation = tuple[torch.Tensor, torch.Tensor]
"""A time float32 [] and a state float32 [...], whose change per unit of time, of its shape, is the velocity."""

SolverStep = Generator[Evaluation, torch.Tensor, torch.Tensor]
"""One step under way."""


def _euler(start: torch.Tensor, end: torch.Tensor, state: torch.Tensor) -> SolverStep:
    velocity = yield start, state
    return state + velocity * (end - start)


def _midpoint(start: torch.Tensor, end: torch.Tensor, state: torch.Tensor) -> SolverStep:
    width = end - start
    velocity = yield start, state
    velocity = yield start + width / 2, state + velocity * width / 2
    return state + velocity * width


def _rk4(start: torch.Tensor, end: torch.Tensor, state: torch.Tensor) -> SolverStep:
    """Advance by Kutta's 3/8 rule, computed in the order of Transformers' ``RungeKutta4ODESolver``."""
    width = end - start
    third, two_thirds = 1 / 3, 2 / 3
    k1 = yield start, state
    k2 = yield start + width * third, state + width * k1 * third
    k3 = yield start + width * two_thirds, state + width * (k2 - k1 * third)
    k4 = yield end, state + width * (k1 - k2 + k3)
    return state + (k1 + 3 * (k2 + k3) + k4) * width / 8


SOLVERS: Mapping[OdeSolver, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], SolverStep]] = {
    "euler": _euler,
    "midpoint": _midpoint,
    "rk4": _rk4,
}
"""Each takes (start, end, state)."""
