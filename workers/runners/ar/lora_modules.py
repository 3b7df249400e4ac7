"""``check_lora_modules``: whether the LoRA adapters of a stage can be loaded from their directories."""

from collections.abc import Mapping
from pathlib import Path

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import check_checkpoint, positive, read_json

_DEFAULT_RANK = 16  # vLLM's max_lora_rank


def check_lora_modules(directories: Mapping[str, str], max_rank: int | None, stage: str) -> None:
    """Check the directories of LoRA adapters by name, each as PEFT saves one, with its weights in safetensors.

    ``max_rank`` is ``engine.max_lora_rank``; None: vLLM's default. Raises ConfigError naming the module and the file.
    """
    for name, directory in directories.items():
        try:
            _check(Path(directory), max_rank or _DEFAULT_RANK)
        except ConfigError as error:
            raise ConfigError(str(error), field=f"engine.lora_modules.{name}", stage=stage) from error


def _check(directory: Path, max_rank: int) -> None:
    check_checkpoint(directory)
    weights = directory / "adapter_model.safetensors"
    if not weights.is_file():
        # vLLM would look for a pickle beside it.
        raise ConfigError("the adapter lacks this file", file=str(weights))
    config = read_json(directory / "adapter_config.json")
    ranks = [positive(config, ["r"], str(directory / "adapter_config.json"))]
    if isinstance(patterns := config.get("rank_pattern"), dict):
        ranks += [positive(patterns, [each], str(directory / "adapter_config.json")) for each in patterns]
    if max(ranks) > max_rank:
        raise ConfigError(f"the adapter's rank is {max(ranks)}: set engine.max_lora_rank, which is {max_rank}")
