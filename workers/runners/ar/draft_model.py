"""``check_draft``: whether the draft model of a stage that guesses tokens can be loaded from its directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import check_checkpoint


def check_draft(speculation: Mapping[str, Any], stage: str) -> None:
    """Check the directory of a draft model, if there is one, whose weights have to be safetensors.

    ``speculation``: vLLM's ``speculative_config``. Raises ConfigError naming the file.
    """
    if (model := speculation.get("model")) is None:
        return
    directory = Path(model)
    try:
        check_checkpoint(directory)
        if not [*directory.glob("*.safetensors")]:
            # vLLM would look for pickles.
            raise ConfigError("the draft has no weights in safetensors", file=str(directory))
    except ConfigError as error:
        raise ConfigError(str(error), field="engine.speculative_config.model", stage=stage) from error
