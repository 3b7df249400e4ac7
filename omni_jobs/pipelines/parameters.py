"""The parameters that a job may set per stage, one class for each kind of stage.

A stage config gives the defaults; a job's ``stages`` object overrides them field by field. Both are checked against
the same class, which refuses unknown names.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

StageKind = Literal["ar", "diffusion", "echo"]
OdeSolver = Literal["rk4", "midpoint", "euler"]

EVALUATIONS_PER_STEP: Mapping[OdeSolver, int] = {"rk4": 4, "midpoint": 2, "euler": 1}
"""How often each solver runs the model in one step, which decides the cost of a step."""


class StageParameters(BaseModel):
    """Base class of the parameters of each kind of stage. Refuses unknown names, NaN, and values of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class ArParameters(StageParameters):
    """Sampling parameters of an autoregressive stage, with the names and meanings of vLLM's ``SamplingParams``."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=100_000, description="0: all tokens")] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    min_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    stop: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], Field(max_length=16, strict=False)
    ] = ()
    ignore_eos: bool = False
    lora: Annotated[
        str | None, Field(min_length=1, max_length=64, description="a name in the stage's engine.lora_modules")
    ] = None

    @field_validator("lora")
    @classmethod
    def _listed(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Check the name against the stage's engine settings, where these are the validation's context."""
        if value is None or info.context is None:
            return value
        listed = getattr(info.context, "lora_modules", {})
        if value not in listed:
            known = ", ".join(sorted(listed)) or "none"
            raise ValueError(f"the stage lists no LoRA module {value!r}; it lists {known}")
        return value

    @field_validator("min_tokens")
    @classmethod
    def _within_max_tokens(cls, value: int, info: ValidationInfo) -> int:
        most = info.data.get("max_tokens")
        if most is not None and value > most:
            raise ValueError(f"{value} is more than max_tokens, {most}")
        return value


class DiffusionParameters(StageParameters):
    """Denoising parameters of a diffusion stage, which solves an ODE from noise (time 0) to the result (time 1)."""

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


class EchoParameters(StageParameters):
    """Parameters of an echo stage, which has no model: it waits ``delay_s``, then emits ``payload_bytes``."""

    delay_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    payload_bytes: Annotated[int, Field(ge=0, le=1 << 30)] = 0


PARAMETERS_OF_KIND: Mapping[StageKind, type[StageParameters]] = {
    "ar": ArParameters,
    "diffusion": DiffusionParameters,
    "echo": EchoParameters,
}
