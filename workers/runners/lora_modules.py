"""LoRA modules: the adapters that an operator lists for a stage by name, and the parameter with which a job takes one.

engine.lora_modules  name → directory of an adapter, in the settings of the stage's engine
lora                 a name of these, a job's parameter
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationInfo, field_validator

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.prompts.checkpoint_files import check_checkpoint, read_json

PEFT_CONFIG: Final = "adapter_config.json"
PEFT_WEIGHTS: Final = "adapter_model.safetensors"

LoraName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]{0,63}$")]
LoraModules = Annotated[
    dict[LoraName, Annotated[str, Field(pattern=r"^/")]],
    Field(max_length=64, description="name → directory of a LoRA adapter; a job names one in the parameter lora"),
]


class LoraParameters(StageParameters):
    """Parameters of a stage that may have LoRA modules."""

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


def check_lora_modules(directories: Mapping[str, str], check: Callable[[Path], None], stage: str) -> None:
    """Check each directory, by name. Raises the ConfigError of ``check`` with the module as its field."""
    for name, directory in directories.items():
        try:
            check_checkpoint(Path(directory))
            check(Path(directory))
        except ConfigError as error:
            raise ConfigError(str(error), field=f"engine.lora_modules.{name}", stage=stage) from error


def peft_config(directory: Path) -> dict[str, Any]:
    """Return the settings of an adapter as PEFT saves one, its weights in safetensors.

    Raises ConfigError naming the file that is missing or cannot be read.
    """
    weights = directory / PEFT_WEIGHTS
    if not weights.is_file():
        # An engine would look for a pickle beside it.
        raise ConfigError("the adapter lacks this file", file=str(weights))
    return read_json(directory / PEFT_CONFIG)
