"""The draft model of a stage that guesses tokens: whether it goes with the stage's model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import check_checkpoint, positive, read_json

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

_FIELD = "engine.speculative_config.model"


def check_speculation(args: AsyncEngineArgs) -> None:
    """Raise ConfigError for guesses in a pipeline of ranks, and for a draft that does not go with the model.

    Its weights have to be safetensors, and its tokens the model's.
    """
    given: dict[str, Any] = args.speculative_config or {}
    if given and args.pipeline_parallel_size > 1:
        said = "in a pipeline of ranks the first would wait for the last one's guesses: take tensor_parallel_size"
        raise ConfigError(said, field="engine.speculative_config")
    if (model := given.get("model")) is None:
        return
    directory = Path(model)
    try:
        check_checkpoint(directory)
        if not [*directory.glob("*.safetensors")]:
            raise ConfigError("the draft has no weights in safetensors", file=str(directory))
        config, file = read_json(directory / "config.json"), str(directory / "config.json")
        nested = config.get("text_config")
        tokens = positive(nested if isinstance(nested, dict) else config, ["vocab_size"], file)
    except ConfigError as error:
        raise ConfigError(str(error), field=_FIELD) from error
    if tokens != (due := int(args.create_model_config().get_vocab_size())):
        raise ConfigError(f"the draft has {tokens:,} tokens and the model {due:,}: they need the same", field=_FIELD)
