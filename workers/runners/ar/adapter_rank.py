"""``check_adapter_rank``: whether a LoRA adapter can be loaded from its directory into vLLM's engine."""

from pathlib import Path

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import positive
from workers.runners.lora_modules import PEFT_CONFIG, peft_config

_DEFAULT_RANK = 16  # vLLM's max_lora_rank


def check_adapter_rank(directory: Path, max_rank: int | None) -> None:
    """Check an adapter that PEFT saved. ``max_rank`` is ``engine.max_lora_rank``; None: vLLM's default.

    Raises ConfigError naming the file.
    """
    most = max_rank or _DEFAULT_RANK
    config = peft_config(directory)
    ranks = [positive(config, ["r"], str(directory / PEFT_CONFIG))]
    if isinstance(patterns := config.get("rank_pattern"), dict):
        ranks += [positive(patterns, [each], str(directory / PEFT_CONFIG)) for each in patterns]
    if max(ranks) > most:
        raise ConfigError(f"the adapter's rank is {max(ranks)}: set engine.max_lora_rank, which is {most}")
