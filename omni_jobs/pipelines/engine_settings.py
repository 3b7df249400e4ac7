"""``EngineSettings``: what a stage config may say under ``engine``, one class for each runner."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

Device = Literal["cpu", "cuda"]


class EngineSettings(BaseModel):
    """Base class of the engine settings of each runner. This one is for runners without any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def on(self, device: Device) -> Self:
        """Return the settings that hold on this kind of device; a runner may have overrides for one of them."""
        del device
        return self

    def with_memory_shares(self, device: Device, *, gpu_memory_utilization: float | None) -> Self:
        """Return the settings with the shares of memory that the host's environment gives; None leaves one as it is."""
        if device == "cpu" or gpu_memory_utilization is None or "gpu_memory_utilization" not in type(self).model_fields:
            return self
        return self.model_copy(update={"gpu_memory_utilization": gpu_memory_utilization})

    def decisive(self) -> dict[str, Any]:
        """Return those settings that decide a job's result and are not left at their defaults, as JSON."""
        return {}
