"""workers.runners.ar.chat_processor: the prompt embeddings of an earlier stage."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, PromptEmbedsPayload, Tensor
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


def payload(rows: NDArray[np.float32] | None, start: int | None = None) -> Payload:
    """Return an earlier stage's payload with these rows, or none, and the position that it gives them."""
    embeds = None if rows is None else PromptEmbedsPayload(Tensor.from_numpy(rows))
    manifest = Manifest(kind="embeds", job_id="job", stage="vision", attempt=1)
    values = {} if start is None else {"prompt_start": start}
    return Payload(manifest, embeds, AdditionalInformationPayload({}, values))


def prompt(
    checkpoint: Path, made: Payload, parameters: StageParameters | None = None, words: str | None = None
) -> OmniTokensPrompt:
    processor = EmbedsProcessor(STAGE, OmniModelConfig(checkpoint, "causal_lm", None))
    return processor(
        StageInput(
            job_id="job",
            request={"messages": [] if words is None else [{"role": "user", "content": words}]},
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


def test_rows_with_a_start_stand_in_the_prompt_of_the_messages(tiny_causal_lm: Path, width: int) -> None:
    rows = np.random.default_rng(0).normal(size=(3, width)).astype(np.float32)
    made = prompt(tiny_causal_lm, payload(rows, 2), words="A long question")
    token_ids = load_renderer("causal_lm", tiny_causal_lm).encode(
        {"messages": [{"role": "user", "content": "A long question"}]}
    )
    assert token_ids is not None
    assert (list(made.prompt_token_ids), made.prompt_embeds) == (list(token_ids), None)
    (span,) = made.prompt_spans
    assert (span.start, span.end) == (2, 5)
    assert np.array_equal(span.rows.numpy(), rows)


@pytest.mark.parametrize(
    ("words", "start", "said"),
    [("Hi", 100, "rows for the positions 100 to 102, and the messages' prompt has"), (None, 0, "no messages")],
)
def test_a_start_at_which_the_rows_have_no_place_is_refused(
    tiny_causal_lm: Path, width: int, words: str | None, start: int, said: str
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        prompt(tiny_causal_lm, payload(np.zeros((3, width), np.float32), start), words=words)
    assert caught.value.field == "values.prompt_start"


def test_a_payload_without_rows_is_refused(tiny_causal_lm: Path) -> None:
    with pytest.raises(PayloadCorrupt) as caught:
        prompt(tiny_causal_lm, payload(None))
    assert caught.value.field == "prompt_embeds"


def test_no_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        EmbedsProcessor(STAGE, None)
