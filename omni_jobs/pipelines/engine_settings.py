"""``EngineSettings``: what a stage config may say under ``engine``, one class for each runner."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

Device = Literal["cpu", "cuda"]


class EngineSettings(BaseModel):
    """Base class of the engine settings of each runner. This one is for runners without any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def cards(self) -> int:
        """The number of GPUs that the engine uses."""
        return 1

    @property
    def weight_parts(self) -> int:
        """The number of cards among which the weights are divided; each of other cards has all of them."""
        return self.cards

    @property
    def asked_of_model(self) -> frozenset[str]:
        """The settings that are set and that only some models take: those whose component declares it."""
        return frozenset()

    @property
    def takes_tools(self) -> bool:
        """Whether a job may offer the model tools, whose calls the runner then gives as ``tool_calls``."""
        return False

    def on(self, device: Device) -> Self:
        """Return the settings that hold on this kind of device; a runner may have overrides for one of them."""
        del device
        return self

    def with_memory_shares(
        self, device: Device, *, gpu_memory_utilization: float | None, kv_cache_memory_bytes: int | None
    ) -> Self:
        """Return the settings on this kind of device, with an environment's memory shares in place of their own.

        Each is for runners that have such a setting. ``gpu_memory_utilization`` is for GPUs, where it replaces
        ``kv_cache_memory_bytes`` too, to which vLLM would give precedence. ``kv_cache_memory_bytes`` is for CPUs. None
        leaves the stage config's. Raises pydantic's ValidationError for a share that is out of bounds.
        """
        engine = self.on(device)
        shares: dict[str, float | None] = {}
        if device == "cuda" and gpu_memory_utilization is not None:
            shares = {"gpu_memory_utilization": gpu_memory_utilization, "kv_cache_memory_bytes": None}
        if device == "cpu" and kv_cache_memory_bytes is not None:
            shares = {"kv_cache_memory_bytes": kv_cache_memory_bytes}
        changes = {name: share for name, share in shares.items() if name in type(self).model_fields}
        return type(self).model_validate(engine.model_dump(exclude_unset=True) | changes) if changes else engine

    def decisive(self) -> dict[str, Any]:
        """Return those settings that decide a job's result and are not left at their defaults, as JSON."""
        return {}
