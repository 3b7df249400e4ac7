"""How vLLM runs GLM-Image's language model, and what becomes of the tokens that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_jobs.errors import ModelError
from workers.models.glm_image.family import LANGUAGE_MODEL
from workers.models.glm_image.grids import PIXELS, Grid
from workers.runners.ar.component import ArComponent
from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt
from workers.stages.types import OmniModelRunnerOutput

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def language_model_config(config: PretrainedConfig) -> PretrainedConfig:
    """Edit and return the language model's part of a GLM-Image config; it is ``hf_overrides`` of vLLM.

    A config without this part, such as vLLM's dummy, is returned as it is.
    """
    vq_config = getattr(config, "vq_config", None)
    if vq_config is None:
        return config
    text: PretrainedConfig = config.text_config
    text.architectures = [LANGUAGE_MODEL]
    text.tie_word_embeddings = False
    text.codebook_size = vq_config.num_embeddings
    return text


def target_tokens(prompt: OmniTextPrompt | OmniTokensPrompt, output: OmniModelRunnerOutput) -> OmniModelRunnerOutput:
    """Return the output with the target grid's tokens alone, and the picture's size.

    The preview before it has served its purpose: the model has seen it. Raise ModelError when the model has not
    written both grids.
    """
    if isinstance(prompt, OmniTextPrompt):
        raise ModelError("image tokens are made of a prompt with grids", field="grids")
    grids = [Grid(*grid) for grid in prompt.additional_information["grids"].tolist()]
    due = sum(grid.tokens for grid in grids)
    if len(output.token_ids) != due:
        raise ModelError(f"the model wrote {len(output.token_ids)} of {due} image tokens", field="token_ids")
    target = grids[-1]
    return output._replace(
        token_ids=output.token_ids[-target.tokens :],
        finish_reason="stop",  # vLLM's reason is the limit, which is the size of the grids
        values={**output.values, "height": target.height * PIXELS, "width": target.width * PIXELS},
        usage={"prompt_tokens": len(output.prompt_token_ids), "completion_tokens": due},
    )


GENERATE = ArComponent(
    text=False,
    model="vision_language_encoder",
    engine_args={
        "hf_overrides": language_model_config,
        "skip_tokenizer_init": True,
        "enable_prompt_embeds": True,  # vLLM then takes additional information
        "generation_config": "vllm",  # the parameters say how tokens are sampled
    },
    finish=target_tokens,
)
