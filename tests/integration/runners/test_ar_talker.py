"""The talker on vLLM: codes as Transformers has them, from the oracle's hidden states.

One engine with 64 tokens a step and a KV cache of 1024, so that prompts come in chunks
and batches push each other out.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from omni_jobs.errors import ModelError
from tests.oracles.ar import (
    CASES,
    LENGTHS,
    PIPELINE,
    TALKER_TOKENS,
    Case,
    expected_payload,
    quiet,
    runner,
    talker_prompt,
)
from tests.oracles.reference import Reference, ReferenceResult, Way
from tests.processes import one_process_an_engine
from workers.models.qwen2_5_omni.processors import Thinker2TalkerProcessor
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.stage import Stage
from workers.stages.types import Progress

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]


class Talker:
    """The runner, with the oracle and the processor that make its inputs."""

    def __init__(self, checkpoint: Path, run: ARRunner) -> None:
        self.runner = run
        self.reference = Reference(checkpoint)
        self._checkpoint = checkpoint
        stage = PIPELINE.stage("talker")
        self._processor = Thinker2TalkerProcessor(stage, Stage(PIPELINE, stage, checkpoint).model)

    def prompt(
        self, expected: ReferenceResult, positions: torch.Tensor | None = None, **parameters: Any
    ) -> OmniTokensPrompt:
        """``positions`` [3, P]: those of the thinker; None: of text."""
        if positions is None:
            positions = torch.arange(len(expected.prompt_ids)).expand(3, -1)
        payload = expected_payload(self._checkpoint, expected, positions)
        return talker_prompt(self._processor, payload, **parameters)

    def positions(self, case: Case) -> torch.Tensor:
        """The thinker's M-RoPE positions [3, P] as Transformers has them."""
        inputs = self.reference._inputs(case.messages, case.media, Way.MASK_GIVEN_BACK)
        features = inputs.get("feature_attention_mask")
        positions, _ = self.reference.model.thinker.get_rope_index(
            inputs["input_ids"],
            inputs.get("image_grid_thw"),
            inputs.get("video_grid_thw"),
            inputs["attention_mask"],
            False,
            None if features is None else features.sum(dim=1),
            inputs.get("video_second_per_grid"),
        )
        return positions[:, 0].to(torch.int64)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def talker(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Talker]:
    found = runner(
        tiny_checkpoint,
        "talker",
        tmp_path_factory.mktemp("spool"),
        block_size=32,
        kv_cache_memory_bytes=1 << 20,
        max_model_len=768,
        max_num_seqs=16,
        max_num_batched_tokens=64,
    )
    with one_process_an_engine():
        await found.start()
    yield Talker(tiny_checkpoint, found)
    await found.close()


@pytest.mark.parametrize("name", CASES)
async def test_codes_equal_to_transformers(talker: Talker, name: str) -> None:
    expected = CASES[name].expected(talker.reference)
    seen: list[Progress] = []
    output = await talker.runner.run(talker.prompt(expected, talker.positions(CASES[name])), seen.append)
    assert list(output.token_ids) == expected.talker_codes
    assert output.text is None
    assert output.hidden_states is None
    assert seen[-1].text is None
    assert seen[-1].done == len(output.token_ids)


async def test_a_batch_of_different_lengths_in_chunks_with_preemption(talker: Talker) -> None:
    before = await talker.runner.stats()
    expected = [case.expected(talker.reference, talker_max_tokens=100) for case in LENGTHS]
    outputs = await asyncio.gather(*(talker.runner.run(talker.prompt(one, max_tokens=100), quiet) for one in expected))
    assert [list(output.token_ids) for output in outputs] == [one.talker_codes for one in expected]
    after = await talker.runner.stats()
    assert after["resumed"] > before["resumed"]
    assert (after["informed"], after["loaded"]) == (0, 0)


async def test_without_a_penalty_and_executed_twice(talker: Talker) -> None:
    expected = CASES["text"].expected(talker.reference, talker_repetition_penalty=1.0)
    for _ in range(2):
        output = await talker.runner.run(talker.prompt(expected, repetition_penalty=1.0), quiet)
        assert list(output.token_ids) == expected.talker_codes


async def test_sampling_is_the_seeds(talker: Talker) -> None:
    expected = CASES["text"].expected(talker.reference)
    prompt = talker.prompt(expected, temperature=0.9, top_k=40, top_p=0.8)
    alone = await talker.runner.run(prompt, quiet)
    first, second, other = await asyncio.gather(
        talker.runner.run(prompt, quiet),
        talker.runner.run(prompt, quiet),
        talker.runner.run(replace(prompt, seed=2), quiet),
    )
    # Three prompts share the steps of 64 tokens: these are cut elsewhere than the one alone.
    assert list(first.token_ids) == list(second.token_ids) == list(alone.token_ids)
    assert list(first.token_ids) != list(other.token_ids)
    assert 8293 not in {*first.token_ids, *other.token_ids}
    assert len(first.token_ids) <= TALKER_TOKENS


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"feed": torch.zeros(40, 64)}, "feed"),
        ({"feed": torch.zeros(3, 128)}, "feed"),
        ({"feed": torch.zeros(400, 128, dtype=torch.int64)}, "feed"),
        ({"feed": [torch.zeros(3)]}, "feed"),
        ({"mrope_positions": torch.zeros(3, 5, dtype=torch.int64)}, "mrope_positions"),
        ({"mrope_delta": 5}, "mrope_delta"),
        ({"mrope_delta": None}, "mrope_delta"),
    ],
)
async def test_information_that_does_not_fit_fails_that_request_alone(
    talker: Talker, changes: dict[str, Any], field: str
) -> None:
    expected = CASES["text"].expected(talker.reference)
    good = talker.prompt(expected)
    bad = replace(good, additional_information={**good.additional_information, **changes})
    failed, output = await asyncio.gather(
        talker.runner.run(bad, quiet), talker.runner.run(good, quiet), return_exceptions=True
    )
    assert isinstance(failed, ModelError)
    assert (failed.field, failed.stage) == (field, "talker")
    assert not isinstance(output, BaseException)
    assert list(output.token_ids) == expected.talker_codes


async def test_positions_beyond_what_the_model_embeds(talker: Talker) -> None:
    good = talker.prompt(CASES["text"].expected(talker.reference))
    positions = good.additional_information["mrope_positions"] + 10**6
    far = {"mrope_positions": positions, "mrope_delta": int(positions.max()) + 1 - positions.shape[1]}
    with pytest.raises(ModelError) as caught:
        await talker.runner.run(replace(good, additional_information={**good.additional_information, **far}), quiet)
    assert caught.value.field == "mrope_positions"


async def test_cancelling_forgets_the_information(talker: Talker) -> None:
    moving = asyncio.Event()
    prompt = talker.prompt(CASES["text"].expected(talker.reference), max_tokens=600)
    running = asyncio.create_task(talker.runner.run(prompt, lambda progress: moving.set()))
    await moving.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(60):
        while (await talker.runner.stats())["informed"]:
            # Finished requests leave the runner with the next step: give it one.
            await talker.runner.run(talker.prompt(CASES["text"].expected(talker.reference), max_tokens=1), quiet)


async def test_a_prompt_longer_than_the_context(talker: Talker) -> None:
    good = talker.prompt(CASES["text"].expected(talker.reference))
    information = {
        "feed": torch.zeros(900, 128),
        "mrope_positions": torch.arange(800).expand(3, -1),
        "mrope_delta": 0,
    }
    with pytest.raises(ModelError) as caught:
        await talker.runner.run(
            replace(good, prompt_token_ids=[8296] * 798 + [8292, 8293], additional_information=information), quiet
        )
    assert caught.value.stage == "talker"
    assert (await talker.runner.stats())["loaded"] == 0
