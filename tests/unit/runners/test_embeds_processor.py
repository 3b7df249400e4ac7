"""workers.runners.ar.chat_processor: the prompt embeddings of an earlier stage."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from omni_jobs.errors import ConfigError, ModelError, OmniJobsError, PayloadCorrupt
from omni_jobs.payloads import Manifest, Payload, PromptEmbedsPayload, Tensor
from omni_jobs.pipelines.stage_config import ModelConfig, StageConfig
from omni_jobs.prompts.renderers import load_renderer
from workers.runners.ar.chat_processor import EmbedsProcessor
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.types import StageInput, StageParameters

STAGE = StageConfig(
    name="llm",
    kind="ar",
    model=ModelConfig(family="causal_lm"),
    processor="embeds",
    inputs={"vision": "embeds"},
    produces="text",
)


def payload(rows: NDArray[np.float32] | None) -> Payload:
    """Return an earlier stage's payload with these rows, or none."""
    embeds = None if rows is None else PromptEmbedsPayload(Tensor.from_numpy(rows))
    manifest = Manifest(kind="embeds", job_id="job", stage="vision", attempt=1)
    return Payload(manifest=manifest, prompt_embeds=embeds)


def prompt(checkpoint: Path, made: Payload, parameters: StageParameters | None = None) -> OmniTokensPrompt:
    processor = EmbedsProcessor(STAGE, OmniModelConfig(checkpoint, "causal_lm", None))
    return processor(
        StageInput(
            job_id="job",
            request={"messages": []},
            media=(),
            upstream={"vision": made},
            parameters=parameters or ArParameters(max_tokens=5),
            seed=3,
            capture=False,
        )
    )


@pytest.fixture
def width(tiny_causal_lm: Path) -> int:
    return load_renderer("causal_lm", tiny_causal_lm).hidden_size


def test_the_rows_become_the_prompt(tiny_causal_lm: Path, width: int) -> None:
    rows = np.random.default_rng(0).normal(size=(6, width)).astype(np.float32)
    made = prompt(tiny_causal_lm, payload(rows))
    assert made.prompt_embeds is not None
    assert np.array_equal(made.prompt_embeds.numpy(), rows)
    assert (made.prompt_token_ids, made.seed, made.parameters.max_tokens) == ((), 3, 5)


@pytest.mark.parametrize(
    ("rows", "error", "field"),
    [
        (None, PayloadCorrupt, "prompt_embeds"),
        (np.zeros((4, 3), np.float32), ModelError, "prompt_embeds.shape"),
    ],
)
def test_rows_that_the_engine_would_die_of_are_refused(
    tiny_causal_lm: Path,
    width: int,
    rows: NDArray[np.float32] | None,
    error: type[OmniJobsError],
    field: str,
) -> None:
    with pytest.raises(error) as caught:
        prompt(tiny_causal_lm, payload(rows))
    assert str(caught.value.field).startswith(field)


def test_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        EmbedsProcessor(STAGE, None)
