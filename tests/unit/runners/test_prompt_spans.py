"""workers.runners.ar.prompts: embeddings for parts of a prompt, as vLLM takes them, and those that do not fit."""

from collections.abc import Sequence

import pytest
import torch

from omni_jobs.errors import ModelError
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt, PromptSpan

WIDTH = 4
TOKEN_IDS = [5, 6, 7, 8, 9, 10]


def prompt(spans: Sequence[PromptSpan], embeds: torch.Tensor | None = None) -> OmniTokensPrompt:
    return OmniTokensPrompt(
        TOKEN_IDS, {}, ArParameters(), seed=1, capture=False, prompt_embeds=embeds, prompt_spans=spans
    )


def rows(count: int, dtype: torch.dtype = torch.float32, width: int = WIDTH) -> torch.Tensor:
    return torch.ones(count, width, dtype=dtype)


def test_rows_stand_at_their_positions_and_tokens_elsewhere() -> None:
    made = prompt([PromptSpan(1, rows(2, torch.bfloat16)), PromptSpan(5, rows(1))]).for_vllm(WIDTH)
    assert made["prompt_token_ids"] == TOKEN_IDS
    assert made["prompt_is_token_ids"] == [True, False, False, True, True, False]
    assert made["prompt_embeds"].dtype == torch.float32
    assert made["prompt_embeds"][:, 0].tolist() == [0, 1, 1, 0, 0, 1]


def test_neighbours_may_touch_and_a_span_may_be_the_whole_prompt() -> None:
    assert not any(prompt([PromptSpan(0, rows(6))]).for_vllm(WIDTH)["prompt_is_token_ids"])
    touching = prompt([PromptSpan(0, rows(2)), PromptSpan(2, rows(1))]).for_vllm(WIDTH)
    assert touching["prompt_is_token_ids"] == [False] * 3 + [True] * 3


def test_prompts_of_other_places_share_no_prefix_cache() -> None:
    salts = {prompt([PromptSpan(start, rows(1))]).for_vllm(WIDTH)["cache_salt"] for start in (0, 1, 0)}
    assert len(salts) == 2


@pytest.mark.parametrize(
    ("spans", "field", "said"),
    [
        ([PromptSpan(-1, rows(1))], "prompt_spans.0.start", "positions -1 to -1"),
        ([PromptSpan(5, rows(2))], "prompt_spans.0.start", "positions 5 to 6, and the prompt has those from 0 to 5"),
        ([PromptSpan(0, rows(2)), PromptSpan(1, rows(1))], "prompt_spans.1.start", "the span before it ends at 1"),
        ([PromptSpan(3, rows(1)), PromptSpan(0, rows(1))], "prompt_spans.1.start", "the span before it ends at 3"),
        ([PromptSpan(0, rows(1, width=3))], "prompt_spans.0.rows.shape", r"\[1, 3\] where \[1 or more, 4\] is due"),
        ([PromptSpan(0, rows(0))], "prompt_spans.0.rows.shape", r"\[0, 4\]"),
        ([PromptSpan(0, torch.ones(WIDTH))], "prompt_spans.0.rows.shape", r"\[4\]"),
        ([PromptSpan(0, rows(1, torch.int64))], "prompt_spans.0.rows.dtype", "torch.int64"),
    ],
)
def test_a_span_that_does_not_fit_is_named(spans: Sequence[PromptSpan], field: str, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        prompt(spans).for_vllm(WIDTH)
    assert caught.value.field == field


def test_a_whole_prompt_of_embeddings_has_no_parts() -> None:
    with pytest.raises(ModelError, match="the whole prompt") as caught:
        prompt([PromptSpan(0, rows(1))], rows(6)).for_vllm(WIDTH)
    assert caught.value.field == "prompt_spans"
    with pytest.raises(ModelError) as caught:
        prompt([], rows(6, width=3)).for_vllm(WIDTH)
    assert caught.value.field == "prompt_embeds.shape"
