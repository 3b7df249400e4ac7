"""``HookedWorker``: vLLM's worker for this host's platform. A subclass names its model runner in ``runner_class``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from vllm.platforms import current_platform

if TYPE_CHECKING:
    import torch

    from workers.vllm_hooks.model_runner import HookedModelRunner

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker

    from workers.vllm_hooks.cpu_lora import skip_rows_without_adapter

    class HookedWorker(CPUWorker):
        """The CPU worker. It builds its runner in ``init_device``, so the built runner gets our class afterwards."""

        runner_class: ClassVar[type[HookedModelRunner]]
        model_runner: Any

        def init_device(self) -> None:
            super().init_device()  # type: ignore[no-untyped-call]
            if self.vllm_config.lora_config is not None:
                skip_rows_without_adapter()
            self.model_runner.__class__ = _on_cpu(self.runner_class)
            self.model_runner.set_up()

    def _on_cpu(runner_class: type[HookedModelRunner]) -> type[Any]:
        """Return a class with our overrides, then vLLM's for CPUs, then its runner in the resolution order."""
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        return type(f"CPU{runner_class.__name__}", (runner_class, CPUModelRunner), {})

else:
    from vllm.v1.worker.gpu_worker import Worker

    class HookedWorker(Worker):  # type: ignore[no-redef]
        """The GPU worker, which builds its runner in a method of its own."""

        runner_class: ClassVar[type[HookedModelRunner]]
        model_runner: Any

        def _make_model_runner(self) -> HookedModelRunner:
            return self.runner_class(self.vllm_config, cast("torch.device", self.device))
