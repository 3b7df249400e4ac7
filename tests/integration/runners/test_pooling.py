"""The pooling runner on an engine: the rows of Transformers, for many prompts at once in a KV cache for one.

The checkpoint is the tiny causal language model, in which the embedding of one token is infinite.
"""

import asyncio
import multiprocessing
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
import yaml
from safetensors.torch import load_file, save_file

from omni_jobs.errors import ConfigError, EngineDead, ModelError, OmniJobsError, PayloadCorrupt
from omni_jobs.payloads import Payload, PromptEmbedsPayload, Tensor
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.pipelines.stage_config import Pipeline
from tests.oracles.ar import quiet
from tests.oracles.causal_lm import CONTEXT
from tests.processes import one_process_an_engine
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.runners.pooling.engine_settings import PoolingEngine
from workers.runners.pooling.parameters import PoolingParameters
from workers.runners.pooling.pooling_runner import PoolingRunner
from workers.runners.pooling.prompt import PoolingPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput, Progress

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

INFINITE = 319  # past the tokenizer's vocabulary
WORDS = 250  # of which prompts here are made
CROWDED: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 128,
    "kv_cache_memory_bytes": 9 * 128 * 2 * 2 * 2 * 32 * 4,  # nine blocks, and the longest prompt takes eight
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
}
PIPELINE = {
    "name": "echoed_embeds",
    "version": "1",
    "model": {"family": "causal_lm"},
    "stages": {
        "encode": {"kind": "pooling", "component": "encoder", "processor": "token_embeds", "produces": "embeds"},
        "answer": {"kind": "ar", "processor": "embeds", "inputs": {"encode": "embeds"}, "produces": "text"},
    },
    "outputs": {"text": {"stage": "answer"}},
}


class Oracle:
    """The same checkpoint in Transformers, in float64, one prompt at a time."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64).model.eval()
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def rows(self, token_ids: Sequence[int]) -> torch.Tensor:
        """The last hidden states after the final norm, [P, H]."""
        with torch.inference_mode():
            return self.model(torch.tensor([list(token_ids)])).last_hidden_state[0]

    def check(self, prompt: PoolingPrompt, output: OmniModelRunnerOutput) -> None:
        sequences = {"prompt_embeds": prompt.prompt_token_ids, "negative_prompt_embeds": prompt.negative_token_ids}
        expected = {name: each for name, each in sequences.items() if each is not None}
        assert set(output.multimodal_outputs) == set(expected)
        for name, token_ids in expected.items():
            found = output.multimodal_outputs[name]
            assert (found.dtype, found.device.type) == (torch.float32, "cpu")
            assert found.shape == (len(token_ids) - prompt.drop, 64)
            # Transformers' own float32 is up to 1.5e-5 away from float64.
            torch.testing.assert_close(found.double(), self.rows(token_ids)[prompt.drop :], rtol=0, atol=2e-5)
        assert output.usage == {"prompt_tokens": sum(map(len, expected.values())), "completion_tokens": 0}


def args(checkpoint: Path, **engine: Any) -> OmniEngineArgs:
    model = OmniModelConfig(checkpoint, "causal_lm", "encoder")
    return OmniEngineArgs("encode", model, "cpu", None, 16, PoolingEngine.model_validate(engine))


def prompt(tokens: int, negative: int | None = None, drop: int = 0, seed: int = 0) -> PoolingPrompt:
    draw = random.Random(seed)
    sequences = [None if n is None else [draw.randrange(WORDS) for _ in range(n)] for n in (tokens, negative)]
    return PoolingPrompt(sequences[0] or [], PoolingParameters(), 0, sequences[1], drop)


@pytest.fixture(scope="module")
def checkpoint(tiny_causal_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("infinite") / "checkpoint"
    shutil.copytree(tiny_causal_lm, directory)
    weights = load_file(directory / "model.safetensors")
    weights["model.embed_tokens.weight"][INFINITE] = torch.inf
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> Oracle:
    return Oracle(checkpoint)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    file = tmp_path_factory.mktemp("pipelines") / "echoed_embeds.yaml"
    file.write_text(yaml.safe_dump(PIPELINE), encoding="utf-8")
    return load_pipeline(file)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runner(checkpoint: Path) -> AsyncIterator[PoolingRunner]:
    started = PoolingRunner(args(checkpoint, **CROWDED))
    with one_process_an_engine():
        await started.start()
    yield started
    await started.close()


async def test_rows_are_those_of_transformers(runner: PoolingRunner, oracle: Oracle) -> None:
    """Forty prompts at once of all lengths, each with its own negative prompt; the cache holds one of the longest."""
    lengths = (1, 2, 3, 17, 64, 127, 128, 129, 200, 333, 700, CONTEXT - 1, CONTEXT)
    prompts = [prompt(tokens, seed=tokens) for tokens in lengths]
    prompts += [
        prompt(tokens, lengths[-1 - n], drop=tokens // 2 % 17, seed=n) for n, tokens in enumerate(lengths[3:-3])
    ]
    prompts += [prompt(40, 1 + n, seed=n) for n in range(20)]
    outputs = await asyncio.gather(*(runner.run(each, quiet) for each in prompts))
    for each, output in zip(prompts, outputs, strict=True):
        oracle.check(each, output)


async def test_progress_counts_the_tokens_of_both_prompts(runner: PoolingRunner) -> None:
    seen: list[Progress] = []
    await runner.run(prompt(30, 12), seen.append)
    assert [(each.done, each.total, each.unit) for each in seen][::2] == [(0, 42, "tokens"), (42, 42, "tokens")]
    assert seen[1].done in (30, 12)


@pytest.mark.parametrize(
    ("wrong", "message", "field"),
    [
        (prompt(0), "0 tokens, of which 0 are dropped: no row is left", "prompt_token_ids"),
        (prompt(3, drop=3), "3 tokens, of which 3 are dropped", "prompt_token_ids"),
        (prompt(9, 3, drop=3), "3 tokens, of which 3 are dropped", "negative_token_ids"),
        (prompt(9, drop=-1), "9 tokens, of which -1", "prompt_token_ids"),
        (prompt(CONTEXT + 1), f"{CONTEXT + 1} tokens, and the model takes {CONTEXT}", "prompt_token_ids"),
        (prompt(9, CONTEXT + 1), f"{CONTEXT + 1} tokens, and the model takes {CONTEXT}", "negative_token_ids"),
        (replace(prompt(9), prompt_token_ids=[3, 1000]), "1000 is out of vocabulary", None),
        (replace(prompt(9), negative_token_ids=[INFINITE, 3]), "a row is not finite", "negative_prompt_embeds"),
    ],
)
async def test_a_wrong_prompt_fails_alone(
    runner: PoolingRunner, oracle: Oracle, wrong: PoolingPrompt, message: str, field: str | None
) -> None:
    others = [prompt(50 + n, 20, seed=n) for n in range(4)]
    failed, *outputs = await asyncio.gather(
        *(runner.run(each, quiet) for each in (wrong, *others)), return_exceptions=True
    )
    assert isinstance(failed, ModelError)
    assert message in failed.message
    assert (failed.field, failed.stage) == (field, "encode")
    for each, output in zip(others, outputs, strict=True):
        assert isinstance(output, OmniModelRunnerOutput)
        oracle.check(each, output)
    again = [prompt(CONTEXT, seed=1), prompt(130, 50, seed=2)]  # in the blocks that the wrong one had
    for each in again:
        oracle.check(each, await runner.run(each, quiet))


async def test_cancelled_prompts_leave_the_engine(runner: PoolingRunner, oracle: Oracle) -> None:
    """Those that wait in the engine are not computed: otherwise the last would come after all of them."""
    begun = asyncio.Event()
    tasks = [
        asyncio.create_task(runner.run(prompt(CONTEXT, CONTEXT, seed=n), lambda _: begun.set())) for n in range(200)
    ]
    await begun.wait()
    for task in tasks:
        task.cancel()
    async with asyncio.timeout(20):
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    last = prompt(20, 10)
    oracle.check(last, await runner.run(last, quiet))
    assert runner.healthy


async def test_from_a_request_to_the_next_stages_prompt(
    runner: PoolingRunner, oracle: Oracle, pipeline: Pipeline, checkpoint: Path
) -> None:
    encode, answer = (Stage(pipeline, pipeline.stage(name), checkpoint) for name in ("encode", "answer"))
    messages = [{"role": "user", "content": "A lighthouse at night"}]
    request = {"messages": messages, "parameters": {"encode": {"negative_prompt": "fog"}}}
    common: dict[str, Any] = {"job_id": "job-1", "request": request, "media": (), "seed": 1}
    stage_input = encode.input_of(**common, upstream={}, has_successors=True)
    made = encode.make_prompt(stage_input)
    assert isinstance(made, PoolingPrompt)
    negative = oracle.tokenizer.apply_chat_template(
        [{"role": "user", "content": "fog"}], add_generation_prompt=True, return_dict=False
    )
    assert list(made.negative_token_ids or ()) == negative
    output = await runner.run(made, quiet)
    result = encode.finish(output, stage_input)
    assert result.payload is not None
    assert result.result == {"usage": {"encode": output.usage}}
    data = b"".join(result.payload.buffers())

    payload = Payload.decode(data, len(data), key="jobs/1", stage="answer")
    assert payload.additional_information is not None
    width = payload.additional_information.tensor("negative_prompt_embeds", rank=2, finite=True).shape
    assert width == (len(negative), 64)
    taken = answer.make_prompt(answer.input_of(**common, upstream={"encode": payload}, has_successors=False))
    assert isinstance(taken, OmniTokensPrompt)
    assert taken.prompt_embeds is not None
    assert torch.equal(taken.prompt_embeds, output.multimodal_outputs["prompt_embeds"])

    placed = await runner.run(replace(made, drop=2, prompt_start=1), quiet)
    placed_result = encode.finish(placed, stage_input).payload
    assert placed_result is not None
    within = answer.make_prompt(answer.input_of(**common, upstream={"encode": placed_result}, has_successors=False))
    assert isinstance(within, OmniTokensPrompt)
    assert (within.prompt_embeds, [span.start for span in within.prompt_spans]) == (None, [1])

    assert payload.prompt_embeds is not None
    rows = payload.prompt_embeds.embeds.numpy().copy()
    rows[1, 2] = float("nan")
    spoiled = replace(payload, prompt_embeds=PromptEmbedsPayload(Tensor.from_numpy(rows), key="jobs/1", stage="answer"))
    with pytest.raises(PayloadCorrupt, match="not finite") as caught:
        answer.make_prompt(answer.input_of(**common, upstream={"encode": spoiled}, has_successors=False))
    assert (caught.value.key, caught.value.field, caught.value.stage) == ("jobs/1", "prompt_embeds", "answer")


async def test_a_batch_that_does_not_take_the_longest_prompt_is_refused(checkpoint: Path) -> None:
    """Where the stage config leaves the context's length to the checkpoint."""
    small = PoolingRunner(args(checkpoint, **{**CROWDED, "max_num_batched_tokens": CONTEXT - 1}))
    with pytest.raises(ConfigError, match=rf"max_num_batched_tokens \({CONTEXT - 1}\) is smaller than max_model_len"):
        await small.start()
    assert not small.healthy
    await small.close()


async def test_a_killed_engine_ends_the_runs(runner: PoolingRunner) -> None:
    """The last test of this engine."""
    begun = asyncio.Event()
    tasks = [
        asyncio.create_task(runner.run(prompt(CONTEXT, CONTEXT, seed=n), lambda _: begun.set())) for n in range(50)
    ]
    await begun.wait()
    (engine,) = multiprocessing.active_children()
    engine.kill()
    async with asyncio.timeout(30):
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    dead = [end for end in ends if not isinstance(end, OmniModelRunnerOutput)]
    assert dead
    assert all(isinstance(end, EngineDead) for end in dead), dead
    assert {end.stage for end in dead if isinstance(end, OmniJobsError)} == {"encode"}
    assert not runner.healthy
    with pytest.raises(EngineDead):
        await runner.run(prompt(3), quiet)
