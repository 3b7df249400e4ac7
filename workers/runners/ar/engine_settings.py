"""``ArEngine``: the ``engine`` of an AR stage in a stage config: vLLM's engine arguments, LoRA adapters, its parser."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from omni_jobs.pipelines.engine_settings import Device
from workers.runners.on_vllm.engine_settings import VllmEngine

LoraName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]{0,63}$")]


class ArEngine(VllmEngine):
    """Engine arguments of vLLM by their own names; under ``cpu`` and ``cuda`` those that replace them on such hosts."""

    lora_modules: dict[LoraName, Annotated[str, Field(pattern=r"^/")]] = Field(
        default={},
        max_length=64,
        description="name → directory of a LoRA adapter; a job names one in the parameter lora",
    )

    tool_parser: Annotated[
        str | None,
        Field(pattern=r"^[a-z0-9_]{1,64}$", description="vLLM's parser of the model's calls of tools, such as hermes"),
    ] = None

    @property
    def takes_tools(self) -> bool:
        return self.tool_parser is not None

    def _check_on(self, device: Device, arguments: Mapping[str, Any]) -> None:
        if self.lora_modules and arguments.get("enable_lora") is False:
            raise self._problem(device, "enable_lora", "false, and there are lora_modules")

    def vllm_args(self, device: Device) -> dict[str, Any]:
        """Return the keyword arguments for vLLM's ``AsyncEngineArgs``; vLLM chooses those that are not set.

        With ``lora_modules``, LoRA is on, all modules stay loaded, and up to 8 of them run in one batch.
        """
        arguments = super().vllm_args(device)
        if self.lora_modules:
            modules = len(self.lora_modules)
            together = arguments.setdefault("max_loras", min(modules, 8))
            arguments |= {"enable_lora": True, "max_cpu_loras": arguments.get("max_cpu_loras", max(modules, together))}
        return arguments

    def decisive(self) -> dict[str, Any]:
        """Return what decides a job's result: the arguments in ``DECISIVE``, the names of adapters, and the parser."""
        own: dict[str, Any] = {"lora_modules": sorted(self.lora_modules)} if self.lora_modules else {}
        return super().decisive() | own | ({} if self.tool_parser is None else {"tool_parser": self.tool_parser})
