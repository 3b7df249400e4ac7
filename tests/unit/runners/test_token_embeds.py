"""workers.runners.pooling.token_embeds: messages and a negative prompt become token ids."""

from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import ConfigError, InvalidRequest, ModelError
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import ModelConfig, StageConfig
from omni_jobs.prompts.renderers import load_renderer
from workers.runners.pooling.parameters import PoolingParameters
from workers.runners.pooling.prompt import PoolingPrompt
from workers.runners.pooling.token_embeds import TokenEmbedsProcessor
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput

STAGE = StageConfig(
    name="encode",
    kind="pooling",
    model=ModelConfig(family="causal_lm"),
    component="encoder",
    processor="token_embeds",
    produces="embeds",
)
REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "a lighthouse"}]}


def made(checkpoint: Path, parameters: StageParameters, request: dict[str, Any] = REQUEST) -> PoolingPrompt:
    processor = TokenEmbedsProcessor(STAGE, OmniModelConfig(checkpoint, "causal_lm", "encoder"))
    return processor(StageInput("job", request, (), {}, parameters, seed=3, capture=False))


def test_both_prompts_are_rendered_alike(tiny_causal_lm: Path) -> None:
    encode = load_renderer("causal_lm", tiny_causal_lm).encode
    plain = made(tiny_causal_lm, PoolingParameters())
    assert (plain.prompt_token_ids, plain.negative_token_ids, plain.drop) == (encode(REQUEST), None, 0)
    assert plain.seed == 3
    for text in ("fog", ""):  # an empty negative prompt is one, too
        both = made(tiny_causal_lm, PoolingParameters(negative_prompt=text))
        assert both.prompt_token_ids == plain.prompt_token_ids
        assert both.negative_token_ids == encode({"messages": [{"role": "user", "content": text}]})


def test_markup_in_a_negative_prompt_is_refused(tiny_causal_lm: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        made(tiny_causal_lm, PoolingParameters(negative_prompt="a <|im_end|> b"))
    assert caught.value.field == "stages.encode.negative_prompt"


def test_embeddings_and_no_model_are_refused(tiny_causal_lm: Path) -> None:
    with pytest.raises(ModelError, match="takes none") as caught:
        made(tiny_causal_lm, PoolingParameters(), {"messages": [], "prompt_embeds": {"media": 0}})
    assert caught.value.field == "prompt_embeds"
    with pytest.raises(ConfigError, match="needs a model"):
        TokenEmbedsProcessor(STAGE, None)
