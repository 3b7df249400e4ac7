"""``DiffusionEngine``: the settings of a diffusion stage's engine."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from omni_jobs.pipelines.engine_settings import Device, EngineSettings
from workers.runners.lora_modules import LoraModules


class _Overrides(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=4096, description="rows in one step; None: the slots")] | None = None
    max_batch_cost: (
        Annotated[
            int,
            Field(
                ge=1, description="the cost of all rows of a step, in the model's own unit; None: the model's choice"
            ),
        ]
        | None
    ) = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    snapshot_every_s: Annotated[
        float, Field(ge=0, le=86_400, description="between two snapshots of a stage run, in seconds; 0: not by time")
    ] = 10.0
    snapshot_every_steps: (
        Annotated[int, Field(ge=1, description="between two snapshots of a stage run; None: not by steps")] | None
    ) = None

    devices: Annotated[
        int,
        Field(ge=1, le=2, description="2: the unconditional pass of each step runs on the next device"),
    ] = 1
    weights: (
        Annotated[Literal["float8"], Field(description="float8: the transformer's weights are kept in 8 bit")] | None
    ) = None
    offload_blocks: Annotated[
        bool, Field(description="the transformer's blocks stay in host memory, and come to the card to compute")
    ] = False
    rank_timeout_s: Annotated[
        float, Field(gt=0, le=86_400, description="that one of two devices waits for the other before the engine ends")
    ] = 300.0


class _OnCpu(_Overrides):
    @field_validator("offload_blocks")
    @classmethod
    def _needs_a_card(cls, value: bool) -> bool:
        if value:
            raise ValueError("on a CPU all weights are in host memory: set it under cuda")
        return value


class DiffusionEngine(_Overrides, EngineSettings):
    """The settings of a diffusion stage's engine, and those that replace them on one kind of host."""

    preview_every_steps: Annotated[
        int, Field(ge=1, le=1000, description="steps from one preview to the next, for a job that asks for them")
    ] = 5
    lora_modules: LoraModules = Field(default={})
    cpu: _OnCpu | None = None
    cuda: _Overrides | None = None

    @property
    def asked_of_model(self) -> frozenset[str]:
        asked = {"lora_modules"} if self.lora_modules else set[str]()
        for at, each in self._by_host.items():
            wanted = {"devices": each.devices > 1, "weights": each.weights, "offload_blocks": each.offload_blocks}
            asked |= {f"{at}{name}" for name, is_set in wanted.items() if is_set}
        return frozenset(asked)

    @property
    def _by_host(self) -> Mapping[str, "_Overrides"]:
        """The settings of all hosts, and those that replace them on one kind, each with the path to it."""
        given = {"": self, "cpu.": self.cpu, "cuda.": self.cuda}
        return {at: each for at, each in given.items() if each is not None}

    @property
    def cards(self) -> int:
        return self.devices

    @property
    def weight_parts(self) -> int:
        return 1

    def is_snapshot_due(self, seconds: float, steps: int) -> bool:
        """Return whether to save a row whose last snapshot, or begin, is ``seconds`` and ``steps`` ago."""
        by_time = self.snapshot_every_s > 0 and seconds >= self.snapshot_every_s
        return by_time or (self.snapshot_every_steps is not None and steps >= self.snapshot_every_steps)

    def on(self, device: Device) -> Self:
        """Return the settings on this kind of host: those under its name replace the others."""
        base = self.model_dump(exclude={"cpu", "cuda"}, exclude_unset=True)
        overrides = self.cpu if device == "cpu" else self.cuda
        return (
            type(self)(**base) if overrides is None else type(self)(**base | overrides.model_dump(exclude_unset=True))
        )

    def decisive(self) -> dict[str, Any]:
        """Return the dtypes and weights that are set and the names of adapters, because they decide a result."""
        decisive: dict[str, Any] = {} if self.dtype is None else {"dtype": self.dtype}
        if self.weights is not None:
            decisive["weights"] = self.weights
        if self.lora_modules:
            decisive["lora_modules"] = sorted(self.lora_modules)
        for name in ("cpu", "cuda"):
            overrides: _Overrides | None = getattr(self, name)
            if overrides is None:
                continue
            own: dict[str, Any] = {} if overrides.dtype is None else {"dtype": overrides.dtype}
            if "weights" in overrides.model_fields_set and overrides.weights != self.weights:
                own["weights"] = overrides.weights
            if own:
                decisive[name] = own
        return decisive
