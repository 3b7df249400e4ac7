"""The thinker on vLLM: tokens and hidden states as Transformers has them, whatever happens in the batch."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from vllm.config import VllmConfig
from vllm.platforms.cpu import CpuPlatform

from omni_jobs.errors import ConfigError, EngineDead, ModelError
from tests.oracles.ar import CASES, LENGTHS, PIPELINE, THINKER_TOKENS, Case, quiet, runner, text
from tests.oracles.reference import Reference, ReferenceResult
from tests.processes import one_process_an_engine
from workers.runners.ar import ar_runner
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.kept_prefixes import KeptPrefixes
from workers.runners.ar.prefix_reader import PrefixReader
from workers.runners.ar.sampling import sampling_params
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput, Progress

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]


LAYERS = {"embedded": 0, "second": 1, "once_more": 1}


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Reference:
    return Reference(tiny_checkpoint)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ARRunner]:
    """As a worker runs it: the engine and its worker in processes of their own. Small blocks, so that prompts share.

    It asks vLLM for a cache of media with room for one picture, and must not get it.
    """
    found = runner(tiny_checkpoint, "thinker", tmp_path_factory.mktemp("spool"), block_size=32)
    found._engine_args["mm_processor_cache_gb"] = 600e3 / 2**30
    await found.start()
    yield found
    await found.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowded(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ARRunner]:
    """64 tokens a step and a KV cache of 1024: prompts come in chunks, requests push each other out.

    With async scheduling, which vLLM never uses on CPUs but always on GPUs: a step is given to
    the model before the one before has said which requests have ended. It captures each layer's inputs, too.
    """
    found = runner(
        tiny_checkpoint,
        "thinker",
        tmp_path_factory.mktemp("spool"),
        block_size=32,
        kv_cache_memory_bytes=1 << 20,
        max_model_len=768,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        hidden_layers=LAYERS,
    )
    with one_process_an_engine(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", classmethod(_with_async_scheduling))
        await found.start()
    yield found
    await found.close()


_check_and_update_config = CpuPlatform.check_and_update_config


def _with_async_scheduling(platform: type[CpuPlatform], config: VllmConfig) -> None:
    _check_and_update_config(config)
    assert config.scheduler_config.async_scheduling is False
    config.scheduler_config.async_scheduling = True


def assert_equal(output: OmniModelRunnerOutput, expected: ReferenceResult) -> None:
    assert list(output.prompt_token_ids) == expected.prompt_ids
    assert list(output.token_ids) == expected.thinker_tokens
    assert output.text == expected.text
    if output.hidden_states is None:
        return
    assert expected.hidden_rows is not None
    assert output.hidden_states.shape == expected.hidden_rows.shape
    assert torch.allclose(output.hidden_states, expected.hidden_rows, rtol=0, atol=1e-4)
    prompt = len(expected.prompt_ids)
    positions = output.multimodal_outputs["mrope_positions"]
    assert positions.shape == (3, prompt)
    assert output.values["mrope_delta"] == int(positions.max()) + 1 - prompt


def assert_layers(output: OmniModelRunnerOutput, case: Case, reference: Reference) -> None:
    """What the engine captured of each layer is what Transformers gives to it."""
    expected = reference.layers(case.messages, case.media, output.token_ids)
    for name, layer in LAYERS.items():
        found = output.multimodal_outputs[name]
        assert isinstance(found, torch.Tensor)
        assert found.shape == expected[layer].shape
        assert torch.allclose(found, expected[layer], rtol=0, atol=1e-4), name


async def test_a_layer_that_the_model_lacks_is_named(tiny_checkpoint: Path, tmp_path: Path) -> None:
    found = runner(tiny_checkpoint, "thinker", tmp_path, hidden_layers={"middle": 1, "beyond": 2})
    with pytest.raises(ConfigError, match="the model has the layers 0 to 1") as caught:
        await found.start()
    assert caught.value.field == "engine.hidden_layers.beyond"


async def test_embeddings_that_are_split_over_ranks_are_not_captured(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The one rank that captures would wait for the others for ever."""
    found = runner(tiny_checkpoint, "thinker", tmp_path, hidden_layers={"embedded": 0}, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="splits over ranks") as caught:
        await found.start()
    assert caught.value.field == "engine.hidden_layers.embedded"


@pytest.mark.parametrize("name", CASES)
async def test_equal_to_transformers(thinker: ARRunner, reference: Reference, name: str) -> None:
    output = await thinker.run(CASES[name].prompt(reference), quiet)
    assert_equal(output, CASES[name].expected(reference))


async def test_a_batch_of_different_lengths_mixed_with_text_alone(thinker: ARRunner, reference: Reference) -> None:
    before = await thinker.stats()
    outputs = await asyncio.gather(
        *(thinker.run(case.prompt(reference, capture=n % 3 != 0), quiet) for n, case in enumerate(LENGTHS))
    )
    for n, (output, case) in enumerate(zip(outputs, LENGTHS, strict=True)):
        assert (output.hidden_states is not None) == (n % 3 != 0)
        assert_equal(output, case.expected(reference))
    after = await thinker.stats()
    captured = [output for output in outputs if output.hidden_states is not None]
    rows = sum(len(output.prompt_token_ids) + len(output.token_ids) - 1 for output in captured)
    assert sum(after[name] - before[name] for name in ("captured_rows", "reused_rows")) == rows
    assert after["captured_requests"] - before["captured_requests"] == len(captured)
    assert (after["held_captures"], after["held_bytes"]) == (0, 0)


async def test_text_alone_captures_nothing(thinker: ARRunner, reference: Reference) -> None:
    before = await thinker.stats()
    output = await thinker.run(CASES["image"].prompt(reference, capture=False), quiet)
    after = await thinker.stats()
    assert_equal(output, CASES["image"].expected(reference, modalities=("text",)))
    assert output.hidden_states is None
    for name in ("captured_requests", "captured_rows", "captured_steps", "host_copies"):
        assert after[name] == before[name]


async def test_media_reach_the_engine_whatever_it_had_before(thinker: ARRunner, reference: Reference) -> None:
    """vLLM's caches of media would keep one picture here and another in the engine: they are off.

    A picture that is captured is rendered, waits for its bytes, and enters the engine after one that came later.
    """
    late = CASES["image"].prompt(reference, capture=False, max_tokens=2)
    (image,) = CASES["image"].multi_modal_data["image"]
    early = replace(
        CASES["image"].prompt(reference, capture=True, max_tokens=2),
        multi_modal_data={"image": [image.rotate(90, expand=True)]},
    )
    held = await thinker._budget.reserve(thinker._budget.limit)
    waiting = asyncio.Event()
    first = asyncio.create_task(thinker.run(early, lambda progress: waiting.set()))
    await waiting.wait()
    await thinker.run(late, quiet)
    held.free()
    (await first).free()
    output = await thinker.run(late, quiet)
    assert len(output.token_ids) == 2


async def test_a_stage_run_executed_twice_gives_the_same(thinker: ARRunner, reference: Reference) -> None:
    first, second = [await thinker.run(CASES["audio"].prompt(reference), quiet) for _ in range(2)]
    assert list(first.token_ids) == list(second.token_ids)
    assert first.hidden_states is not None
    assert second.hidden_states is not None
    assert torch.allclose(first.hidden_states, second.hidden_states, rtol=0, atol=1e-5)


async def test_a_captured_prompt_takes_the_rows_of_an_earlier_one_that_began_like_it(
    thinker: ARRunner, reference: Reference
) -> None:
    """Text alone and captured prompts each read what prompts of their own kind have computed."""
    case, other = [text("The same long beginning. " * 8 + end) for end in ("One.", "Two.")]
    await thinker.run(case.prompt(reference, capture=False), quiet)
    before = await thinker.stats()
    alone = await thinker.run(case.prompt(reference, capture=False), quiet)
    between = await thinker.stats()
    first = await thinker.run(case.prompt(reference), quiet)
    captured = await thinker.stats()
    second = await thinker.run(other.prompt(reference), quiet)
    again = await thinker.run(case.prompt(reference), quiet)
    after = await thinker.stats()
    assert between["cached_tokens"] > before["cached_tokens"]
    assert captured["cached_tokens"] - between["cached_tokens"] <= 64  # of what all prompts of these tests begin with
    assert after["cached_tokens"] - captured["cached_tokens"] >= 2 * 160
    rows = sum(len(output.prompt_token_ids) + len(output.token_ids) - 1 for output in (second, again))
    assert after["captured_rows"] - captured["captured_rows"] <= rows - 2 * 160
    for output, expected in ((alone, case), (first, case), (second, other), (again, case)):
        assert_equal(output, expected.expected(reference))
    assert after["held_captures"] == 0


async def test_a_picture_s_rows_are_those_of_that_picture(thinker: ARRunner, reference: Reference) -> None:
    (image,) = CASES["image"].multi_modal_data["image"]
    turned = image.rotate(180)
    other = Case(CASES["image"].messages, [turned], {"image": [turned]})
    for case in (CASES["image"], other, CASES["image"], other):
        before = await thinker.stats()
        output = await thinker.run(case.prompt(reference), quiet)
        assert_equal(output, case.expected(reference))
    after = await thinker.stats()
    assert after["cached_tokens"] - before["cached_tokens"] >= 32


async def test_a_batch_of_the_same_prompt_is_as_if_each_were_alone(crowded: ARRunner, reference: Reference) -> None:
    case = text("word " * 40)
    await crowded.run(case.prompt(reference), quiet)
    cases = [text("word " * 40 + end) for end in ("a", "b", "b", "c " * 30)] + [case, case]
    outputs = await asyncio.gather(*(crowded.run(each.prompt(reference, max_tokens=60), quiet) for each in cases))
    for output, each in zip(outputs, cases, strict=True):
        assert_equal(output, each.expected(reference, thinker_max_tokens=60))
        assert_layers(output, each, reference)


async def test_a_prefix_without_its_rows_is_computed_anew(
    thinker: ARRunner, reference: Reference, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that is known leads there: here the runner is made to forget what the engine has."""
    case = text("A third long beginning. " * 8)
    await thinker.run(case.prompt(reference), quiet)
    kept = thinker._prefixes._kept
    assert kept is not None
    forgetful = KeptPrefixes(32, 100, 100)
    forgetful._salt = kept._salt
    monkeypatch.setattr(thinker, "_prefixes", PrefixReader(forgetful))
    seen: list[Progress] = []
    output = await thinker.run(case.prompt(reference), seen.append)
    assert_equal(output, case.expected(reference))
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert "a prefix whose rows are not kept" in caplog.text


async def test_rows_that_were_never_computed_fail_loudly(
    thinker: ARRunner, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = text("Another long beginning. " * 8)
    await thinker.run(case.prompt(reference, capture=False), quiet)

    def reads_the_cache(*args: Any, **named: Any) -> object:
        return sampling_params(*args, **{**named, "reads_cache": True})

    monkeypatch.setattr(thinker, "_prefixes", PrefixReader(None))
    monkeypatch.setattr(ar_runner, "sampling_params", reads_the_cache)
    with pytest.raises(ModelError, match="never computed, the first at 0") as caught:
        await thinker.run(case.prompt(reference), quiet)
    assert (caught.value.stage, caught.value.field) == ("thinker", "hidden_states")
    assert (await thinker.stats())["held_captures"] == 0


async def test_progress_streams_text_and_counts(thinker: ARRunner, reference: Reference) -> None:
    seen: list[Progress] = []
    output = await thinker.run(CASES["text"].prompt(reference, ignore_eos=True), seen.append)
    assert len(output.token_ids) == THINKER_TOKENS
    assert output.finish_reason == "length"
    assert len(seen) > 1
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert (seen[-1].done, seen[-1].total, seen[-1].unit) == (THINKER_TOKENS, THINKER_TOKENS, "tokens")
    assert seen[-1].text == output.text
    for earlier, later in pairwise(seen):
        assert (later.text or "").startswith(earlier.text or "")


async def test_cancelling_aborts_and_releases_the_rows(thinker: ARRunner, reference: Reference) -> None:
    moving = asyncio.Event()
    prompt = CASES["text"].prompt(reference, max_tokens=8000, ignore_eos=True)
    running = asyncio.create_task(thinker.run(prompt, lambda progress: moving.set()))
    await moving.wait()
    held = await thinker.stats()
    assert held["held_captures"] == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(60):
        while (await thinker.stats())["held_captures"]:
            pass  # each answer comes after another engine step
    assert (await thinker.stats())["held_bytes"] == 0
    after = await thinker.run(CASES["text"].prompt(reference), quiet)
    assert_equal(after, CASES["text"].expected(reference))


async def test_cancelled_before_it_began(thinker: ARRunner, reference: Reference) -> None:
    running = asyncio.create_task(thinker.run(CASES["video"].prompt(reference), quiet))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert_equal(await thinker.run(CASES["text"].prompt(reference), quiet), CASES["text"].expected(reference))
    assert (await thinker.stats())["held_captures"] == 0


async def test_a_prompt_that_is_too_long_fails_alone(thinker: ARRunner, reference: Reference) -> None:
    long, short = await asyncio.gather(
        thinker.run(text("x" * 9000).prompt(reference), quiet),
        thinker.run(CASES["text"].prompt(reference), quiet),
        return_exceptions=True,
    )
    assert isinstance(long, ModelError)
    assert long.stage == "thinker"
    assert isinstance(short, OmniModelRunnerOutput)
    assert_equal(short, CASES["text"].expected(reference))


@pytest.mark.parametrize("scheduling", ["sync", "async"])
async def test_early_stop_at_a_token_or_a_string(
    thinker: ARRunner,
    crowded: ARRunner,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    scheduling: str,
) -> None:
    """Each hands on P + N - 1 rows, though the engine may have computed one more."""
    run = {"sync": thinker, "async": crowded}[scheduling]
    expected = [case.expected(reference) for case in LENGTHS]
    token = expected[0].thinker_tokens[11]
    monkeypatch.setattr(run, "_stop_ids", [token])
    ends = [one.text[7:9] for one in expected]
    outputs = await asyncio.gather(
        *(run.run(case.prompt(reference), quiet) for case in LENGTHS),
        *(run.run(case.prompt(reference, stop=[end]), quiet) for case, end in zip(LENGTHS, ends, strict=True)),
    )
    stopped = 0
    for n, (output, one) in enumerate(zip(outputs, expected * 2, strict=True)):
        length = _first(token, one.thinker_tokens)
        if n >= len(LENGTHS):
            length = min(length, one.text.index(ends[n - len(LENGTHS)]) + 2)
        assert list(output.token_ids) == one.thinker_tokens[:length]
        assert (output.finish_reason == "stop") == (length < THINKER_TOKENS)
        stopped += length < THINKER_TOKENS
        assert output.hidden_states is not None
        assert one.hidden_rows is not None
        due = one.hidden_rows[: len(one.prompt_ids) + length - 1]
        assert output.hidden_states.shape == due.shape
        assert torch.allclose(output.hidden_states, due, rtol=0, atol=1e-4)
    assert stopped > len(LENGTHS)
    before = await run.stats()
    output = await run.run(LENGTHS[0].prompt(reference), quiet)
    after = await run.stats()
    computed = sum(after[name] - before[name] for name in ("captured_rows", "reused_rows"))
    taken = len(output.prompt_token_ids) + len(output.token_ids) - 1
    assert computed == taken + (scheduling == "async")
    assert after["held_captures"] == 0


def _first(token: int, tokens: Sequence[int]) -> int:
    """Return the number of tokens up to and with the first such one."""
    return tokens.index(token) + 1 if token in tokens else len(tokens)


async def test_max_tokens_beyond_the_context_ends_with_it(crowded: ARRunner, reference: Reference) -> None:
    output = await crowded.run(
        text("x" * 600).prompt(reference, capture=False, max_tokens=100_000, ignore_eos=True), quiet
    )
    assert output.finish_reason == "length"
    assert len(output.prompt_token_ids) + len(output.token_ids) == 768


@pytest.mark.parametrize("name", ["text", "audio", "image", "audio+image"])
async def test_prefill_in_chunks(crowded: ARRunner, reference: Reference, name: str) -> None:
    before = await crowded.stats()
    output = await crowded.run(CASES[name].prompt(reference), quiet)
    expected = CASES[name].expected(reference)
    assert_equal(output, expected)
    assert_layers(output, CASES[name], reference)
    after = await crowded.stats()
    computed = len(expected.prompt_ids) - (after["reused_rows"] - before["reused_rows"])
    assert after["captured_steps"] - before["captured_steps"] >= computed // 64 + len(expected.thinker_tokens)


async def test_preemption_and_recomputation(crowded: ARRunner, reference: Reference) -> None:
    cases: list[Case] = [text(f"{n} " * 60) for n in range(7)] + [CASES["audio+image"]]
    before = await crowded.stats()
    outputs = await asyncio.gather(
        *(crowded.run(case.prompt(reference, max_tokens=120), quiet) for case in cases),
        *(crowded.run(text("push " * 20).prompt(reference, max_tokens=120, ignore_eos=True), quiet) for _ in range(4)),
    )
    after = await crowded.stats()
    assert after["resumed"] > before["resumed"]
    for output, case in zip(outputs, cases, strict=False):
        assert_equal(output, case.expected(reference, thinker_max_tokens=120))
        assert_layers(output, case, reference)
    assert after["held_captures"] == 0


async def test_a_component_no_ar_stage_runs() -> None:
    with pytest.raises(ConfigError, match="such a stage runs thinker, talker"):
        ARRunner(OmniEngineArgs("code2wav", OmniModelConfig(Path(), "qwen2_5_omni", "code2wav"), "cpu", None, 1))
    assert PIPELINE.stage("thinker").component == "thinker"


async def test_a_killed_engine_is_engine_dead_and_leaves_nothing(crowded: ARRunner, reference: Reference) -> None:
    """Last: it ends the engine."""
    moving = asyncio.Event()
    prompt = CASES["text"].prompt(reference, max_tokens=700, ignore_eos=True)
    running = asyncio.create_task(crowded.run(prompt, lambda progress: moving.set()))
    await moving.wait()
    os.kill((await crowded.stats())["pid"], signal.SIGKILL)
    with pytest.raises(EngineDead) as caught:
        await running
    assert caught.value.stage == "thinker"
    assert caught.value.retryable
    assert not crowded.healthy
    with pytest.raises(EngineDead):
        await crowded.run(CASES["text"].prompt(reference), quiet)


async def test_closing_ends_what_is_running(thinker: ARRunner, reference: Reference) -> None:
    """Last: it ends the engine."""
    moving = asyncio.Event()
    prompt = CASES["text"].prompt(reference, max_tokens=8000, ignore_eos=True)
    running = asyncio.create_task(thinker.run(prompt, lambda progress: moving.set()))
    await moving.wait()
    await thinker.close()
    with pytest.raises(EngineDead, match="was closed"):
        await running
    assert not thinker.healthy


async def test_engine_arguments_vllm_refuses(tiny_checkpoint: Path, tmp_path: Path) -> None:
    refused = runner(tiny_checkpoint, "thinker", tmp_path, max_model_len=1_000_000)
    with pytest.raises(ConfigError, match="vLLM refuses"):
        await refused.start()
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    await refused.close()
