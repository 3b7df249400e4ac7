"""Holds all uses of vLLM's private API, so that no other package touches it.

register          entry point vllm.general_plugins: registers model classes and a tokenizer in each of vLLM's processes
hooks             the table of the names that an upgrade may move, and its check
model_runner      vLLM's V1 model runner, with its private steps turned into plain hooks
hidden_layers     the layers whose inputs an engine captures, on their way through vLLM's arguments
seeds             a generator for seeded sampling on CPUs
cpu_lora          a correction of vLLM's LoRA for batches with and without an adapter on CPUs
worker            vLLM's worker for this platform, made to build our model runner
lone_tokenizer    a tokenizer in a folder that holds no model
vocabulary        the bytes of each token
token_logprobs    the logprobs of a text's tokens, as a job's result has them
tool_parsers      the parsers of the calls of tools that models write
grammars          the JSON schemas that its structured outputs cannot keep to
grammar_compiler  the process that compiles such a schema as vLLM does, before vLLM has it
engine            AsyncLLM: its start, its calls and its errors
quick_import      the import of vLLM's engine, without garbage collection meanwhile
engine_arguments  the types of its arguments, by which they are checked
"""

import logging
import os
from collections.abc import Iterator
from functools import cache

from omni_jobs.errors import PluginBroken
from omni_jobs.pipelines.declarations import FAMILIES, family
from omni_jobs.pipelines.plugins import names
from workers.parent_death import end_with_parent, is_running

__all__ = ["ENGINE_PID", "LONE_TOKENIZER", "end_with_engine", "register"]

logger = logging.getLogger(__name__)

ENGINE_PID = "OMNI_ENGINE_PID"
"""The environment variable with an engine's process id, which the engine sets for the processes of its ranks."""

LONE_TOKENIZER = "omni_jobs_lone"
"""The ``tokenizer_mode`` of vLLM for a tokenizer that lies in a folder without a model."""


def register() -> None:
    """Register our model classes and ``LONE_TOKENIZER`` with vLLM, and let a rank's process end with its engine's.

    vLLM calls this in each of its processes, even in those of other programs on this installation. It imports a model
    class only when it builds the model.
    """
    end_with_engine()  # first, because another package's plug-in may fail below
    from vllm import ModelRegistry

    for name, model_class in _model_classes():
        if name not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(name, model_class)
    _register_lone_tokenizer()


def end_with_engine() -> None:
    """Let the process of a rank end with its engine's; do nothing in any other.

    A rank whose engine died before this call ends at once, because it would load the model for nobody.
    """
    engine = int(os.environ.get(ENGINE_PID, os.getpid()))
    if engine == os.getppid():
        end_with_parent(engine)
    elif not is_running(engine):
        os._exit(1)


@cache  # vLLM warns of what is registered twice
def _register_lone_tokenizer() -> None:
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers.registry import TokenizerRegistry

    TokenizerRegistry.register(LONE_TOKENIZER, "workers.vllm_hooks.lone_tokenizer", "LoneTokenizer")
    RENDERER_REGISTRY.register(LONE_TOKENIZER, "vllm.renderers.hf", "HfRenderer")


def _model_classes() -> Iterator[tuple[str, str]]:
    """Yield (name, "module:Class") of the model classes that installed families bring to vLLM."""
    for name in names(FAMILIES):
        try:
            yield from family(name).vllm_models.items()
        except PluginBroken as error:  # of another package: this engine's model may be fine
            logger.warning("the model classes of %s are missing: %s", name, error)
