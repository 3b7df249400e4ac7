"""``ArEngine``: the ``engine`` of an AR stage in a stage config: vLLM's engine arguments, LoRA adapters, its parser."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from omni_jobs.pipelines.engine_settings import Device
from workers.runners.lora_modules import LoraModules
from workers.runners.on_vllm.engine_settings import VllmEngine

OWN_NAMES = frozenset({"hidden_states", "mrope_positions", "mrope_delta", "token_ids", "codes"})
"""What a payload holds by the runner itself: no other output of a stage may have one of these names."""


class ArEngine(VllmEngine):
    """Engine arguments of vLLM by their own names; under ``cpu`` and ``cuda`` those that replace them on such hosts."""

    lora_modules: LoraModules = Field(default={})

    tool_parser: Annotated[
        str | None,
        Field(pattern=r"^[a-z0-9_]{1,64}$", description="vLLM's parser of the model's calls of tools, such as hermes"),
    ] = None

    hidden_layers: dict[
        Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")], Annotated[int, Field(ge=0, le=1023)]
    ] = Field(
        default={},
        max_length=16,
        description="name → layer whose inputs are captured with the last hidden states; 0: the embeddings",
    )

    @field_validator("hidden_layers")
    @classmethod
    def _names_are_free(cls, layers: dict[str, int]) -> dict[str, int]:
        if taken := sorted(OWN_NAMES & layers.keys()):
            raise ValueError(f"{taken[0]} is a name of the runner's own")
        return layers

    @property
    def takes_tools(self) -> bool:
        return self.tool_parser is not None

    @property
    def speculates(self) -> bool:
        """Whether an engine on any kind of host guesses tokens."""
        each = (self, self.cpu, self.cuda)
        return any(arguments is not None and arguments.speculative_config is not None for arguments in each)

    def _check_on(self, device: Device, arguments: Mapping[str, Any]) -> None:
        if arguments.get("speculative_config") is not None and arguments.get("async_scheduling"):
            said = "true, and there is speculative_config: the next step is not begun before the guesses are checked"
            raise self._problem(device, "async_scheduling", said)
        if self.lora_modules and arguments.get("enable_lora") is False:
            raise self._problem(device, "enable_lora", "false, and there are lora_modules")

    def vllm_args(self, device: Device) -> dict[str, Any]:
        """Return the keyword arguments for vLLM's ``AsyncEngineArgs``; vLLM chooses those that are not set.

        With ``lora_modules``, LoRA is on, all modules stay loaded, and up to 8 of them run in one batch. Where tokens
        are guessed, a step begins when it is known at which positions it goes on.
        """
        arguments = super().vllm_args(device)
        if "speculative_config" in arguments:
            arguments["async_scheduling"] = False
        if self.lora_modules:
            modules = len(self.lora_modules)
            together = arguments.setdefault("max_loras", min(modules, 8))
            arguments |= {"enable_lora": True, "max_cpu_loras": arguments.get("max_cpu_loras", max(modules, together))}
        return arguments

    def decisive(self) -> dict[str, Any]:
        """Return what decides a job's result: the arguments in ``DECISIVE``, adapters, parser and layers."""
        given = {
            "lora_modules": sorted(self.lora_modules),
            "tool_parser": self.tool_parser,
            "hidden_layers": self.hidden_layers,
        }
        return super().decisive() | {name: value for name, value in given.items() if value}
