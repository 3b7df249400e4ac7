"""The layers whose inputs an engine captures beside the last hidden states, on their way through vLLM's arguments.

A layer's inputs are hidden states [n, H]: those of layer 0 are the embeddings, as in Transformers' ``hidden_states``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

_KEY = "omni_hidden_layers"


def layers_argument(layers: Mapping[str, int]) -> dict[str, Any]:
    """Return the engine arguments that say which layers are captured, by the names of their rows; {} for none."""
    return {"additional_config": {_KEY: dict(layers)}} if layers else {}


def layers_of(config: VllmConfig) -> dict[str, int]:
    """Return the layers by name that an engine was given."""
    given = config.additional_config
    return dict(given.get(_KEY, {})) if isinstance(given, dict) else {}


def check_layers(args: AsyncEngineArgs, read_model: Callable[[], ModelConfig]) -> None:
    """Raise ConfigError naming the first layer that cannot be captured. ``read_model`` reads the model's config."""
    given = args.additional_config
    layers = given.get(_KEY) if isinstance(given, dict) else None
    if not layers:
        return
    number = read_model().get_total_num_hidden_layers()
    for name, layer in layers.items():
        if args.pipeline_parallel_size > 1:
            raise ConfigError(
                "a rank of a pipeline gives the next one nothing of its layers but the last: without "
                "pipeline_parallel_size they can be captured",
                field=f"engine.hidden_layers.{name}",
            )
        if layer == 0 and args.tensor_parallel_size > 1:
            # The one rank that captures would embed tokens alone, and wait for the others for ever.
            raise ConfigError(
                "layer 0 has the embeddings, which tensor_parallel_size splits over ranks: take another layer",
                field=f"engine.hidden_layers.{name}",
            )
        if not 0 <= layer < number:
            raise ConfigError(
                f"the model has the layers 0 to {number - 1}: the last one's output is what is captured anyway",
                field=f"engine.hidden_layers.{name}",
            )
