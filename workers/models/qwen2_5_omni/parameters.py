"""``OdeParameters``: what a job may set for code2wav's denoising."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from omni_jobs.pipelines.parameters import StageParameters

OdeSolver = Literal["rk4", "midpoint", "euler"]

EVALUATIONS_PER_STEP: Mapping[OdeSolver, int] = {"rk4": 4, "midpoint": 2, "euler": 1}
"""How often each solver runs the model in one step, which decides the cost of a step."""


class OdeParameters(StageParameters):
    """Denoising parameters of code2wav, which solves an ODE from noise (time 0) to the result (time 1)."""

    work: ClassVar[Mapping[str, int]] = {"evaluations": 36}

    solver: Annotated[
        OdeSolver,
        Field(
            description="method of a step: rk4 (the 3/8 rule, as in Transformers) runs the model four times, midpoint "
            "twice, euler once; the error falls with the fourth, second and first power of steps"
        ),
    ] = "rk4"
    # Counted as in Transformers. A grid of one time would leave the noise unchanged.
    steps: Annotated[int, Field(ge=2, le=1000, description="times of the ODE's grid: steps - 1 steps are taken")] = 10
    guidance_scale: Annotated[
        float, Field(ge=0, le=20, description="how far from the unguided result; 0 halves an evaluation's cost")
    ] = 0.5
    sway_coefficient: Annotated[
        float, Field(ge=-2, le=2, description="F5-TTS sway sampling: below 0 the steps are finer near the noise")
    ] = -1.0

    @property
    def evaluations(self) -> int:
        """The runs of the model for one prompt without guidance: (steps - 1) x the solver's runs per step."""
        return (self.steps - 1) * EVALUATIONS_PER_STEP[self.solver]
