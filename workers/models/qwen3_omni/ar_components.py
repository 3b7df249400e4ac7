"""How vLLM runs Qwen3-Omni's thinker and talker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from omni_jobs.prompts.checkpoint_files import positive, read_json
from workers.models.qwen3_omni.family import QWEN3_TALKER_MODEL
from workers.models.qwen3_omni.talker_prompt import EMBEDS, PROMPT_IDS, RESIDUAL_CODES
from workers.models.talkers.component import TALKER_ARGS, talker_part
from workers.runners.ar.component import ArComponent

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt
    from workers.stages.types import OmniModelRunnerOutput

_ACCEPTED = "accepted"  # the rows of the layer that the checkpoint calls ``accept_hidden_layer``


def talker_config(config: PretrainedConfig) -> PretrainedConfig:
    """Edit and return the talker's part of a Qwen3-Omni config; it is the talker's ``hf_overrides`` of vLLM."""
    return talker_part(config, architectures=[QWEN3_TALKER_MODEL])


def layers_for_talker(checkpoint: Path) -> Mapping[str, int]:
    """Return the layers of the thinker that the talker reads: the embeddings, and one that its config names."""
    file = checkpoint / "config.json"
    return {EMBEDS: 0, _ACCEPTED: positive(read_json(file), ("talker_config", "accept_hidden_layer"), str(file))}


def thinker_output(prompt: OmniTextPrompt | OmniTokensPrompt, output: OmniModelRunnerOutput) -> OmniModelRunnerOutput:
    """Return a captured output as the talker takes it: the layer that it accepts stands for the hidden states."""
    if output.hidden_states is None:
        return output
    import torch

    others = dict(output.multimodal_outputs)
    accepted = cast("torch.Tensor", others.pop(_ACCEPTED))
    ids = torch.tensor(list(output.prompt_token_ids), dtype=torch.int64)
    return output._replace(hidden_states=accepted, multimodal_outputs={**others, PROMPT_IDS: ids})


def talker_output(prompt: OmniTextPrompt | OmniTokensPrompt, output: OmniModelRunnerOutput) -> OmniModelRunnerOutput:
    """Return a captured output as code2wav takes it: ``frames`` int64 [N - 1, 16], for the last token has no frame."""
    if RESIDUAL_CODES not in output.multimodal_outputs:
        return output
    import torch

    residual = cast("torch.Tensor", output.multimodal_outputs[RESIDUAL_CODES])
    first = torch.tensor(output.token_ids[:-1], dtype=torch.int64)
    frames = torch.cat([first[:, None], residual[1:]], dim=1)  # the first row is of the position before the first token
    return output._replace(hidden_states=None, multimodal_outputs={"frames": frames})


QWEN3_THINKER = ArComponent(hidden_layers=layers_for_talker, finish=thinker_output)

QWEN3_TALKER = ArComponent(
    text=False,
    engine_args={"hf_overrides": talker_config, **TALKER_ARGS},
    stop_ids=lambda config: [config.codec_eos_token_id],
    finish=talker_output,
)
