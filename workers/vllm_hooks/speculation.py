"""What a stage that guesses tokens asks of vLLM, before its engine starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.engine.arg_utils import AsyncEngineArgs

from omni_jobs.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import ModelConfig


def check_speculation(args: AsyncEngineArgs, read_model: Callable[[], ModelConfig]) -> None:
    """Raise ConfigError for guesses in a pipeline of ranks, and for a draft model whose tokens are others.

    ``read_model`` reads the checkpoint's config.
    """
    given: dict[str, Any] = args.speculative_config or {}
    if given and args.pipeline_parallel_size > 1:
        said = "in a pipeline of ranks the first would wait for the last one's guesses: take tensor_parallel_size"
        raise ConfigError(said, field="engine.speculative_config")
    if (model := given.get("model")) is None:
        return
    draft = AsyncEngineArgs(model=model, skip_tokenizer_init=True, dtype=args.dtype).create_model_config()
    tokens, due = int(draft.get_vocab_size()), int(read_model().get_vocab_size())
    if tokens != due:
        said = f"the draft has {tokens:,} tokens and the model {due:,}: they need the same"
        raise ConfigError(said, field="engine.speculative_config.model")
