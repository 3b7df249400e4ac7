"""One step of an ordinary differential equation, by each solver a job may choose.

A solver advances ``state`` from ``start`` to ``end`` along ``velocity(time, state)``, and
asks for the velocity ``EVALUATIONS_PER_STEP`` times. The error of the whole way shrinks
with the power ``order`` of the step: 1 for ``euler``, 2 for ``midpoint``, 4 for ``rk4``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from omni_jobs.pipelines.parameters import OdeSolver

__all__ = ["SOLVERS", "SolverStep", "Velocity"]

Velocity = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(time float32 [], state float32 [...]) → the state's change per unit of time, of the state's shape."""

SolverStep = Callable[[Velocity, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(velocity, start, end, state) → the state at ``end``."""


def _euler(velocity: Velocity, start: torch.Tensor, end: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return state + velocity(start, state) * (end - start)


def _midpoint(velocity: Velocity, start: torch.Tensor, end: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    width = end - start
    middle = state + velocity(start, state) * width / 2
    return state + velocity(start + width / 2, middle) * width


def _rk4(velocity: Velocity, start: torch.Tensor, end: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Kutta's 3/8 rule, in the order in which Transformers' ``RungeKutta4ODESolver`` computes it."""
    width = end - start
    third, two_thirds = 1 / 3, 2 / 3
    k1 = velocity(start, state)
    k2 = velocity(start + width * third, state + width * k1 * third)
    k3 = velocity(start + width * two_thirds, state + width * (k2 - k1 * third))
    k4 = velocity(end, state + width * (k1 - k2 + k3))
    return state + (k1 + 3 * (k2 + k3) + k4) * width / 8


SOLVERS: Mapping[OdeSolver, SolverStep] = {"euler": _euler, "midpoint": _midpoint, "rk4": _rk4}
