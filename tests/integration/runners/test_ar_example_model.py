"""The mechanism by which a model takes additional information and hands named outputs on, with a model from outside.

The model stands in examples/tinted and is explained in docs/models.md. One engine of two
ranks with 64 tokens a step and a small KV cache, so that prompts come in chunks and requests
push each other out.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file

from examples.tinted.tinted.tiny_checkpoint import HIDDEN, build_tiny_checkpoint
from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import Payload, Tensor
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.settings import Settings
from tests.oracles.ar import quiet
from tests.oracles.tinted import EXAMPLE, TintedReference, TintedResult, metadata
from tests.processes import until_gone
from workers.execution.stage_llm import StageLLM
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt, PromptSpan
from workers.runners.echo.echo_processor import EchoPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.stage import Stage
from workers.stages.types import EnginePrompt, OmniModelRunnerOutput, StageInput

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

WORDS = ("a", "few more", "words " * 6, "and many " * 9, "so on " * 12)


class Tinted:
    """The stage on its engine, with the oracle beside it."""

    def __init__(self, pipeline: Pipeline, checkpoint: Path, llm: StageLLM) -> None:
        self.llm = llm
        self.reference = TintedReference(checkpoint)
        self.tints = load_file(checkpoint / "tints" / "tints.safetensors")
        self._pipeline, self._checkpoint = pipeline, checkpoint

    def stage(self, name: str) -> Stage:
        return Stage(self._pipeline, self._pipeline.stage(name), self._checkpoint)

    def stage_input(self, words: str, tint: str = "warm", **parameters: Any) -> StageInput:
        merged = {"temperature": 0, "max_tokens": 24, **parameters}
        messages = [{"role": "system", "content": tint}, {"role": "user", "content": words}]
        return StageInput("job-1", {"messages": messages}, [], {}, ArParameters(**merged), seed=1, capture=True)

    def prompt(self, words: str, tint: str | None = "warm", **parameters: Any) -> OmniTokensPrompt:
        """None: without information."""
        made = self.llm.stage.make_prompt(self.stage_input(words, tint or "warm", **parameters))
        assert isinstance(made, OmniTokensPrompt)
        return made if tint is not None else replace(made, additional_information={})

    def summary_of(self, payload: Payload) -> EnginePrompt:
        """The second stage's prompt, of the first one's payload."""
        summary = self.stage("summary")
        upstream = {"tint": payload}
        return summary.make_prompt(
            summary.input_of(job_id="job-1", request={}, media=[], upstream=upstream, seed=1, has_successors=False)
        )

    async def run(self, prompt: OmniTokensPrompt) -> OmniModelRunnerOutput:
        return await self.llm.runner.run(prompt, quiet)

    async def stats(self) -> dict[str, int]:
        assert isinstance(self.llm.runner, ARRunner)
        return await self.llm.runner.stats()

    def expected(self, prompt: OmniTokensPrompt) -> TintedResult:
        return self.reference.generate(
            prompt.prompt_token_ids, prompt.additional_information, prompt.parameters.max_tokens, prompt.prompt_spans
        )

    def check(self, output: OmniModelRunnerOutput, prompt: OmniTokensPrompt) -> None:
        """Tokens, rows and named outputs are the oracle's."""
        expected = self.expected(prompt)
        assert list(output.token_ids) == expected.token_ids
        if not prompt.capture:
            assert output.hidden_states is None
            return
        assert output.hidden_states is not None
        close(output.hidden_states, expected.rows)
        named, prompt_tokens = output.multimodal_outputs, len(prompt.prompt_token_ids)
        assert set(named) == {"mean", "norms", "per_eight", "per_part", "peaks", "spread"}
        peaks = torch.stack([half.amax(dim=1) for half in expected.rows.chunk(2, dim=1)], dim=1)
        close(named["peaks"], peaks)
        close(named["spread"], peaks.double().diff(dim=1)[prompt_tokens - 1 :, 0])
        close(named["mean"], expected.rows.mean(dim=0))
        close(named["norms"], expected.rows.norm(dim=1))
        assert isinstance(named["per_eight"], list)
        for found, part in zip(named["per_eight"], expected.rows.split(8), strict=True):
            close(found, part.mean(dim=0))
        assert list(named["per_part"]) == ["prompt", "answer"]
        close(named["per_part"]["answer"], expected.rows[prompt_tokens - 1 :].mean(dim=0))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The example's, with the example installed."""
    paths = [str(metadata(tmp_path_factory.mktemp("site"))), str(EXAMPLE)]
    with pytest.MonkeyPatch.context() as patch:
        for path in paths:
            patch.syspath_prepend(path)
        patch.setenv("PYTHONPATH", ":".join(paths))  # of the engine's processes
        yield load_pipeline(EXAMPLE / "tinted.yaml")
    for name in [name for name in sys.modules if name.partition(".")[0] == "tinted"]:
        del sys.modules[name]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tinted(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tinted]:
    checkpoint = build_tiny_checkpoint(tmp_path_factory.mktemp("tinted"))
    stage = Stage(pipeline, pipeline.stage("tint"), checkpoint)
    assert stage.model is not None
    args = OmniEngineArgs.for_stage(
        stage.config, stage.model, Settings(device="cpu", spool_dir=tmp_path_factory.mktemp("spool"))
    )
    crowded = {"block_size": 32, "max_model_len": 256, "max_num_seqs": 16, "max_num_batched_tokens": 64}
    crowded["tensor_parallel_size"] = 2
    engine = ArEngine(**{**args.engine.model_dump(exclude_unset=True), **crowded})
    llm = StageLLM(stage, ARRunner(replace(args, engine=engine)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # two ranks, on however few cores
        await llm.start()
    yield Tinted(pipeline, checkpoint, llm)
    await llm.close()


async def test_from_a_request_to_the_next_stages_input(tinted: Tinted) -> None:
    """Tensor, list and dict, from the model's named outputs through the payload's bytes to the next processor."""
    stage_input = tinted.stage_input("Hello there")
    output = await tinted.llm.generate(stage_input, quiet)
    prompt = tinted.prompt("Hello there")
    tinted.check(output, prompt)
    sent = b"".join(tinted.llm.stage.payload_of(output, stage_input, attempt=1).buffers())
    payload = Payload.decode(sent, len(sent))
    rows = len(prompt.prompt_token_ids) + len(output.token_ids) - 1
    made = tinted.summary_of(payload)
    assert isinstance(made, EchoPrompt)
    assert made.text == f"{rows} rows of {HIDDEN}; {-(-rows // 8)} in eights; parts prompt, answer"


async def test_the_examples_own_flow_is_a_contract(tinted: Tinted) -> None:
    """Tensors that do not go together are refused by the stage that reads them."""
    stage_input = tinted.stage_input("Hello there")
    payload = tinted.llm.stage.payload_of(await tinted.llm.generate(stage_input, quiet), stage_input, attempt=1)
    information = payload.additional_information
    assert information is not None
    tensors = dict(information.tensors)
    rows = len(tensors["norms"].numpy())
    for name, made, field, message in (
        ("norms", np.zeros(rows + 1, np.float32), "tensors.norms.shape", f"{rows + 1} rows, and {rows} elsewhere"),
        ("mean", np.zeros(HIDDEN, np.int32), "tensors.mean.dtype", "I32, not"),
        ("token_ids", np.zeros(1, np.int64), "tensors.hidden_states.shape", f"{rows} rows where"),
    ):
        broken = replace(information, tensors={**tensors, name: Tensor.from_numpy(made)})
        with pytest.raises(PayloadCorrupt, match=message) as caught:
            tinted.summary_of(replace(payload, additional_information=broken))
        assert (caught.value.stage, caught.value.field) == ("summary", field)


async def test_information_changes_what_is_said(tinted: Tinted) -> None:
    prompts = [tinted.prompt("Hello there", tint) for tint in ("warm", "cold", None)]
    said = [tinted.expected(prompt).token_ids for prompt in prompts]
    assert said[0] != said[1] != said[2] != said[0]


async def test_a_batch_with_and_without_information_in_chunks_with_preemption(tinted: Tinted) -> None:
    before = await tinted.stats()
    prompts = [tinted.prompt(words, tint, max_tokens=60) for words in WORDS for tint in ("warm", "cold", None)]
    prompts = [replace(prompt, capture=n % 4 != 0) for n, prompt in enumerate(prompts)]
    assert max(len(prompt.prompt_token_ids) for prompt in prompts) > 64
    outputs = await asyncio.gather(*map(tinted.run, prompts))
    for output, prompt in zip(outputs, prompts, strict=True):
        tinted.check(output, prompt)
    after = await tinted.stats()
    assert after["resumed"] > before["resumed"]
    assert after["captured_requests"] - before["captured_requests"] == sum(prompt.capture for prompt in prompts)
    assert (after["informed"], after["loaded"], after["held_captures"], after["held_bytes"]) == (0, 0, 0, 0)


async def test_what_information_changed_is_not_in_the_prefix_cache(tinted: Tinted) -> None:
    words = "the same long beginning " * 3
    for tint in ("warm", None, "cold", None):
        prompt = replace(tinted.prompt(words, tint), capture=False)
        before = await tinted.stats()
        tinted.check(await tinted.run(prompt), prompt)
        cached = (await tinted.stats())["cached_tokens"] - before["cached_tokens"]
    assert cached > 0  # the last one's, by the second


async def test_embeddings_for_a_prompt(tinted: Tinted) -> None:
    """Of the same tokens they give the same as the tokens, with information and without."""
    prompts = [tinted.prompt(words, tint) for words in WORDS for tint in ("warm", None)]
    given = [
        replace(prompt, prompt_token_ids=(), prompt_embeds=tinted.reference.embeds(prompt.prompt_token_ids))
        for prompt in prompts
    ]
    for output, prompt in zip(await asyncio.gather(*map(tinted.run, given)), prompts, strict=True):
        tinted.check(output, prompt)


def with_rows(prompt: OmniTokensPrompt, seed: int) -> OmniTokensPrompt:
    """The prompt with rows that belong to no token, at its second position and in its second half."""
    generator = torch.Generator().manual_seed(seed)
    half = len(prompt.prompt_token_ids) // 2
    rows = [torch.randn(count, HIDDEN, generator=generator) for count in (1, max(half - 2, 1))]
    return replace(prompt, prompt_spans=[PromptSpan(1, rows[0]), PromptSpan(half, rows[1])])


async def test_embeddings_for_parts_of_prompts_in_chunks_with_preemption(tinted: Tinted) -> None:
    """In one batch with prompts of tokens alone, of embeddings alone, and with information."""
    before = await tinted.stats()
    plain = [tinted.prompt(words, tint, max_tokens=60) for words in WORDS for tint in ("warm", None)]
    prompts = [*plain[:4], *(with_rows(prompt, n) for n, prompt in enumerate([*plain, *plain]))]
    prompts = [replace(prompt, capture=n % 4 != 0) for n, prompt in enumerate(prompts)]
    assert max(span.end - span.start for prompt in prompts for span in prompt.prompt_spans) > 32
    for output, prompt in zip(await asyncio.gather(*map(tinted.run, prompts)), prompts, strict=True):
        tinted.check(output, prompt)
        assert list(output.prompt_token_ids) == list(prompt.prompt_token_ids)
    assert (await tinted.stats())["resumed"] > before["resumed"]


async def test_rows_of_a_part_are_told_apart_in_the_prefix_cache(tinted: Tinted) -> None:
    """Zeros in place of a token, and the token 0, which vLLM's cache would take for one another."""
    begin = [*tinted.prompt("the same long beginning " * 3, None).prompt_token_ids]
    tokens = replace(tinted.prompt("x", None), prompt_token_ids=[*begin[:4], 0, *begin[5:]], capture=False)
    zeros, others = torch.zeros(1, HIDDEN), torch.full((1, HIDDEN), 0.7)
    spans: list[list[PromptSpan]] = [[PromptSpan(4, zeros)], [PromptSpan(4, others)], [PromptSpan(9, zeros)], []]
    for each in [*spans, *spans]:
        before = await tinted.stats()
        prompt = replace(tokens, prompt_spans=each)
        tinted.check(await tinted.run(prompt), prompt)
        cached = (await tinted.stats())["cached_tokens"] - before["cached_tokens"]
    assert cached > 0  # the last one's, by its like


async def test_a_part_that_does_not_fit_fails_alone(tinted: Tinted) -> None:
    prompt = tinted.prompt("Hello there", None)
    wrong = replace(prompt, prompt_spans=[PromptSpan(0, torch.zeros(2, HIDDEN + 1))])
    with pytest.raises(ModelError) as caught:
        await tinted.run(wrong)
    assert (caught.value.field, caught.value.stage) == ("prompt_spans.0.rows.shape", "tint")
    tinted.check(await tinted.run(prompt), prompt)


async def test_cancelling_releases_information_and_rows(tinted: Tinted) -> None:
    moving = asyncio.Event()
    long = tinted.prompt("Hello there", max_tokens=200, ignore_eos=True)
    running = asyncio.create_task(tinted.llm.runner.run(long, lambda progress: moving.set()))
    await moving.wait()
    held = await tinted.stats()
    assert (held["informed"], held["held_captures"]) == (1, 1)
    assert held["held_bytes"] > 0
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(60):
        while (await tinted.stats())["informed"]:
            await tinted.run(tinted.prompt("a", max_tokens=1))  # what has ended leaves the batch with the next step
    after = await tinted.stats()
    assert (after["loaded"], after["held_captures"], after["held_bytes"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tint": torch.zeros(HIDDEN + 1)}, "tint"),
        ({"tint": torch.zeros(HIDDEN, dtype=torch.int64)}, "tint"),
        ({"tint": None}, "tint"),
        ({"drift": torch.zeros(0, HIDDEN)}, "drift"),
        ({"drift": [torch.zeros(HIDDEN)]}, "drift"),
    ],
)
async def test_information_that_does_not_fit_fails_that_request_alone(
    tinted: Tinted, changes: dict[str, Any], field: str
) -> None:
    good = tinted.prompt("Hello there")
    bad = replace(good, additional_information={**good.additional_information, **changes})
    failed, output = await asyncio.gather(tinted.run(bad), tinted.run(good), return_exceptions=True)
    assert isinstance(failed, ModelError)
    assert (failed.field, failed.stage) == (field, "tint")
    assert isinstance(output, OmniModelRunnerOutput)
    tinted.check(output, good)
    assert (await tinted.stats())["loaded"] == 0


async def test_a_part_the_example_lacks(pipeline: Pipeline) -> None:
    with pytest.raises(ConfigError, match="kind ar runs tinted's component 'speech'; such a stage runs None"):
        ARRunner(OmniEngineArgs("tint", OmniModelConfig(Path(), "tinted", "speech"), "cpu", None, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_rank_that_hangs_ends_with_its_engine(tinted: Tinted) -> None:
    """Last: it ends the engine."""
    rank = (await tinted.stats())["pid"]
    engine = int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1])
    assert engine != os.getpid()
    os.kill(rank, signal.SIGSTOP)
    os.kill(engine, signal.SIGKILL)
    until_gone([rank], 30)
