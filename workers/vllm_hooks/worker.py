"""``HookedWorker``: vLLM's worker for this host's platform. A subclass names its model runner in ``runner_class``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm.platforms import current_platform

if TYPE_CHECKING:
    from workers.vllm_hooks.model_runner import HookedModelRunner

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker  # type: ignore[assignment]


class HookedWorker(PlatformWorker):
    """It builds its runner in ``init_device``, so the built runner gets our class afterwards."""

    runner_class: ClassVar[type[HookedModelRunner]]
    model_runner: Any

    def init_device(self) -> None:
        super().init_device()  # type: ignore[no-untyped-call]
        if current_platform.is_cpu() and self.vllm_config.lora_config is not None:
            from workers.vllm_hooks.cpu_lora import skip_rows_without_adapter

            skip_rows_without_adapter()
        self.model_runner.__class__ = _over(type(self.model_runner), self.runner_class)
        self.model_runner.set_up()


def _over(platform_class: type[Any], runner_class: type[HookedModelRunner]) -> type[Any]:
    """Return a class with our overrides, then those of vLLM's runner for this platform, in the resolution order."""
    return type(runner_class.__name__, (runner_class, platform_class), {})
