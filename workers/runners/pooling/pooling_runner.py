"""``PoolingRunner``: the runner of stages of the kind ``pooling``, which makes token ids into rows on vLLM's AsyncLLM.

    run: check → embed (the prompt and its negative prompt at once) → output

``StageLLM`` calls it as any runner. Its output has a row for each token of a prompt: the last hidden state after the
final norm, in the model's dtype. vLLM computes a prompt in one step, together with others as far as
``max_num_batched_tokens`` goes, and returns its rows at once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.prompts.checkpoint_files import check_checkpoint, read_json
from workers.runners.cancellation import settled, together
from workers.runners.declared_component import component_of
from workers.runners.on_vllm.vllm_runner import VllmRunner, given_arguments
from workers.runners.pooling.component import PoolingComponent
from workers.runners.pooling.engine_settings import PoolingEngine
from workers.runners.pooling.prompt import PoolingPrompt
from workers.runners.runner import ProgressSink
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput, Progress
from workers.vllm_hooks import LONE_TOKENIZER

if TYPE_CHECKING:
    import torch

POOLING_ARGUMENTS: Mapping[str, Any] = {
    "runner": "pooling",
    "convert": "embed",
    "pooler_config": {"task": "token_embed", "tok_pooling_type": "ALL", "use_activation": False},
    # A request that was preempted between two chunks would get the rows of the first one twice.
    "enable_chunked_prefill": False,
    "enable_prefix_caching": False,  # tokens from the cache give no rows
}
"""The engine arguments of vLLM that make it return rows instead of tokens."""


class PoolingRunner(VllmRunner[PoolingPrompt, PoolingEngine]):
    """Runs any component that a ``PoolingComponent`` describes: a text encoder. Implements ``TellingRunner``."""

    def __init__(self, args: OmniEngineArgs) -> None:
        """Look up the component and load nothing yet. Raises ConfigError when no pooling stage can run it."""
        model, component = component_of(args, "pooling", PoolingComponent)
        super().__init__(args, engine_args(args, model, component))
        self._most_pictures = component.pictures

    async def start(self) -> None:
        """Start the engine. Raises ConfigError for a checkpoint with more layers behind the final norm, too."""
        check_model_files(Path(self._engine_args["model"]), self.args.stage)
        await super().start()

    async def produce(self, prompt: PoolingPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Run one prompt, with its negative prompt at the same time. Raises ModelError as ``Runner.run`` does.

        The output has ``prompt_embeds`` [P - drop, H], and ``negative_prompt_embeds`` [Q - drop, H] where there is a
        negative prompt, as ``multimodal_outputs`` on the CPU. P and Q count the tokens of pictures. Its values have
        ``prompt_start`` where the prompt has one.
        """
        engine = self._running()
        sequences = {"prompt_embeds": prompt.prompt_token_ids}
        if prompt.negative_token_ids is not None:
            sequences["negative_prompt_embeds"] = prompt.negative_token_ids
        if len(prompt.pictures) > self._most_pictures:
            message = f"{len(prompt.pictures)} pictures, and the component takes {self._most_pictures}"
            raise ModelError(message, field="pictures")
        lengths = {name: len(token_ids) + prompt.picture_tokens for name, token_ids in sequences.items()}
        for name, length in lengths.items():
            _check_length(name, length, prompt.drop, self.model.max_model_len)
        total, done = sum(lengths.values()), 0
        progress(Progress(done, total, "tokens"))

        async def rows_of(name: str, token_ids: Sequence[int]) -> torch.Tensor:
            nonlocal done
            try:
                rows = await engine.embed_tokens(token_ids, uuid.uuid4().hex, prompt.pictures)
            except asyncio.CancelledError:
                await settled(asyncio.ensure_future(engine.answered()))  # then it has dropped the request
                raise
            _check_rows(name, rows, lengths[name])
            done += lengths[name]
            progress(Progress(done, total, "tokens"))
            return rows[prompt.drop :]

        rows = await together([rows_of(name, token_ids) for name, token_ids in sequences.items()])
        return OmniModelRunnerOutput(
            multimodal_outputs=dict(zip(sequences, rows, strict=True)),
            values={} if prompt.prompt_start is None else {"prompt_start": prompt.prompt_start},
            usage={"prompt_tokens": total, "completion_tokens": 0},
        )


def engine_args(args: OmniEngineArgs, model: OmniModelConfig, component: PoolingComponent) -> dict[str, Any]:
    """Return vLLM's AsyncEngineArgs of a stage. Raises ConfigError as ``given_arguments`` does."""
    media: dict[str, Any] = {"language_model_only": True}  # the encoders of media stay out of memory
    if component.pictures:
        media = {"limit_mm_per_prompt": {"image": component.pictures, "video": 0}}
    merged = {**given_arguments(args, PoolingEngine, component.engine_args), **component.engine_args}
    return {
        "model": str(model.path / component.model),
        "tokenizer": str(model.path / component.tokenizer),
        "tokenizer_mode": "auto" if component.tokenizer == component.model else LONE_TOKENIZER,
        "disable_log_stats": True,
        **merged,
        # vLLM would return float32 whatever the model's dtype.
        "hf_overrides": {"head_dtype": "model", **merged.get("hf_overrides", {})},
        **POOLING_ARGUMENTS,
        **media,
    }


def check_model_files(directory: Path, stage: str) -> None:
    """Raise ConfigError for a model directory that is missing, or that projects the rows after the final norm."""
    check_checkpoint(directory)
    modules = directory / "modules.json"
    if modules.exists() and ".Dense" in modules.read_text(encoding="utf-8", errors="replace"):
        # vLLM would apply them, and load their weights even from a pickle.
        raise ConfigError(
            "the checkpoint projects its rows (Dense), and a pooling stage does not", file=str(modules), stage=stage
        )
    read_json(directory / "config.json")


def _check_length(name: str, tokens: int, drop: int, max_model_len: int) -> None:
    field = "prompt_token_ids" if name == "prompt_embeds" else "negative_token_ids"
    if not 0 <= drop < tokens:
        raise ModelError(f"{tokens} tokens, of which {drop} are dropped: no row is left", field=field)
    if tokens > max_model_len:
        raise ModelError(f"{tokens} tokens, and the model takes {max_model_len}", field=field)


def _check_rows(name: str, rows: torch.Tensor, tokens: int) -> None:
    """Raise ModelError for rows that are not one for each token, or hold an infinity or NaN, as float16 may give."""
    if len(rows) != tokens:
        raise ModelError(f"{len(rows)} rows for {tokens} tokens", field=f"{name}.shape")
    if not rows.isfinite().all():
        raise ModelError("a row is not finite: run the stage in another dtype", field=name)
