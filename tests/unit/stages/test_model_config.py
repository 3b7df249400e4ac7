"""``OmniModelConfig`` before an engine of vLLM's has its model, and with one."""

from pathlib import Path

import pytest

from omni_jobs.errors import ConfigError
from workers.stages.engine_args import OmniModelConfig

MODEL = OmniModelConfig(Path("/nowhere"), "qwen2_5_omni", "thinker")
OF_VLLM = (
    "dtype", "max_model_len", "vocabulary_size", "hidden_size", "embeds_size", "layers", "hf_config", "media_limits",
)  # fmt: skip


@pytest.mark.parametrize("name", OF_VLLM)
def test_what_vllm_says_is_not_guessed(name: str) -> None:
    with pytest.raises(ConfigError, match="no engine of vLLM's has qwen2_5_omni's component 'thinker'") as caught:
        getattr(MODEL, name)
    assert caught.value.field == "model"


def test_all_that_vllm_says_is_tried_here() -> None:
    properties = {name for name, value in vars(OmniModelConfig).items() if isinstance(value, property)}
    assert properties == {*OF_VLLM, "in_engine"}
