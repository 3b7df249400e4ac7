"""Qwen3-Omni's stages: text, rows, frames of codes and waveform as Transformers has them, in any company.

The engines have 64 tokens a step and a small KV cache, so that prompts come in chunks and requests push each other out.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch

from omni_jobs.errors import ConfigError, ModelError
from omni_jobs.media import AudioInfo
from omni_jobs.payloads import Payload
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.prompts.renderers import load_renderer
from tests.oracles.ar import CASES, LENGTHS, Case, quiet, runner, stage_input
from tests.oracles.qwen3_omni import Qwen3OmniReference, Qwen3Result
from tests.processes import one_process_an_engine
from tests.services.checkpoint import TinyCheckpoints
from workers.models.qwen3_omni.ar_components import thinker_output
from workers.models.qwen3_omni.parameters import TalkerParameters
from workers.models.qwen3_omni.processors import ThinkerRowsProcessor
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

PIPELINE = load_pipeline(Path(__file__).parents[3] / "stage_configs" / "qwen3_omni.yaml")
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "Nobody."},
]
HISTORY = Case([*TURNS, *CASES["text"].messages])


class Expected:
    """What Transformers gives, each case once."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.reference = Qwen3OmniReference(checkpoint)
        self.of = cache(self._of)

    def _of(self, case: int, tokens: int = 24, penalty: float = 1.05) -> Qwen3Result:
        found = ALL[case]
        return self.reference.generate(
            found.messages,
            found.media,
            thinker_max_tokens=24,
            talker_max_tokens=tokens,
            talker_repetition_penalty=penalty,
        )


ALL = [*CASES.values(), HISTORY, *LENGTHS]
NAMES = [*CASES, "history"]


@pytest.fixture(scope="module")
def expected(tiny_qwen3_omnis: TinyCheckpoints) -> Expected:
    return Expected(tiny_qwen3_omnis(0))


def small(checkpoint: Path, stage: str, spool: Path, **engine: Any) -> ARRunner:
    given: dict[str, Any] = {
        "block_size": 32,
        "kv_cache_memory_bytes": 2 << 20,
        "max_model_len": 1024,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
    }
    return runner(checkpoint, stage, spool, PIPELINE, **given | engine)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker(
    tiny_qwen3_omnis: TinyCheckpoints, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ARRunner]:
    found = small(tiny_qwen3_omnis(0), "thinker", tmp_path_factory.mktemp("spool"))
    with one_process_an_engine():
        await found.start()
    yield found
    await found.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def talker(
    tiny_qwen3_omnis: TinyCheckpoints, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ARRunner]:
    found = small(
        tiny_qwen3_omnis(0),
        "talker",
        tmp_path_factory.mktemp("spool"),
        kv_cache_memory_bytes=1 << 20,
        max_model_len=800,
    )
    with one_process_an_engine():
        await found.start()
    yield found
    await found.close()


def assert_thought(output: OmniModelRunnerOutput, due: Qwen3Result) -> None:
    assert list(output.prompt_token_ids) == due.prompt_ids
    assert list(output.token_ids) == due.tokens
    assert output.text == due.text
    if output.hidden_states is None:
        return
    rows = output.multimodal_outputs
    for found, wanted in ((output.hidden_states, due.hidden_rows), (rows["embeds"], due.embeds)):
        assert isinstance(found, torch.Tensor)
        assert found.shape == wanted.shape
        assert torch.allclose(found, wanted, rtol=0, atol=1e-4)
    assert rows["prompt_ids"].tolist() == due.prompt_ids  # type: ignore[union-attr]
    assert torch.equal(rows["mrope_positions"], due.positions)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
async def test_the_thinker_is_transformers_own(thinker: ARRunner, expected: Expected, name: str) -> None:
    number = NAMES.index(name)
    output = await thinker.run(ALL[number].prompt(expected.reference), quiet)  # type: ignore[arg-type]
    assert_thought(output, expected.of(number))


async def test_a_mixed_batch_in_chunks_with_preemption(thinker: ARRunner, expected: Expected) -> None:
    before = await thinker.stats()
    numbers = [*range(len(ALL)), *range(len(ALL))]
    outputs = await asyncio.gather(
        *(
            thinker.run(ALL[number].prompt(expected.reference, capture=n % 3 != 0), quiet)  # type: ignore[arg-type]
            for n, number in enumerate(numbers)
        )
    )
    for n, (output, number) in enumerate(zip(outputs, numbers, strict=True)):
        assert (output.hidden_states is not None) == (n % 3 != 0)
        assert_thought(output, expected.of(number))
    assert (await thinker.stats())["resumed"] > before["resumed"]


async def test_the_renderer_counts_what_the_engine_makes_of_any_sound(thinker: ARRunner, expected: Expected) -> None:
    sound = np.zeros(10_001, np.float32)
    message = {"role": "user", "content": [{"type": "audio", "media": 0}]}
    heard = Case([message], [sound], {"audio": [(sound, 16_000)]})
    output = await thinker.run(heard.prompt(expected.reference, capture=False, max_tokens=1), quiet)  # type: ignore[arg-type]
    renderer = load_renderer("qwen3_omni", expected.checkpoint)
    counted = renderer.count_tokens({"messages": [message]}, [AudioInfo("audio/wav", len(sound))])
    assert counted == len(output.prompt_token_ids)


# The talker


def payload(expected: Expected, due: Qwen3Result) -> Payload:
    """The thinker's payload as Transformers has it."""
    output = OmniModelRunnerOutput(
        token_ids=due.tokens,
        prompt_token_ids=due.prompt_ids,
        hidden_states=torch.zeros_like(due.hidden_rows),
        multimodal_outputs={"accepted": due.hidden_rows, "embeds": due.embeds, "mrope_positions": due.positions},
        values={"mrope_delta": int(due.positions.max()) + 1 - len(due.prompt_ids)},
    )
    stage = Stage(PIPELINE, PIPELINE.stage("thinker"), expected.checkpoint)
    taken = thinker_output(OmniTokensPrompt((), {}, TalkerParameters(), 1, capture=True), output)
    return stage.payload_of(taken, stage_input({}, "Ethan"), 1)


def talker_prompt(expected: Expected, due: Qwen3Result, **parameters: Any) -> OmniTokensPrompt:
    stage = PIPELINE.stage("talker")
    processor = ThinkerRowsProcessor(stage, Stage(PIPELINE, stage, expected.checkpoint).model)
    given = {"temperature": 0.0, "repetition_penalty": 1.05, "max_tokens": 24, **parameters}
    taken = stage_input({"thinker": payload(expected, due)}, "Ethan", TalkerParameters(**given), capture=True)
    return processor(taken)


def frames_of(output: OmniModelRunnerOutput) -> torch.Tensor:
    frames = output.multimodal_outputs["frames"]
    assert isinstance(frames, torch.Tensor)
    return frames


def assert_spoken(output: OmniModelRunnerOutput, due: Qwen3Result) -> None:
    assert list(output.token_ids) == due.codes
    assert torch.equal(frames_of(output), due.frames)
    assert output.hidden_states is None


@pytest.mark.parametrize("name", NAMES)
async def test_the_talkers_frames_are_transformers_own(talker: ARRunner, expected: Expected, name: str) -> None:
    due = expected.of(NAMES.index(name))
    assert_spoken(await talker.run(talker_prompt(expected, due), quiet), due)


async def test_a_batch_of_talkers_in_chunks_with_preemption(talker: ARRunner, expected: Expected) -> None:
    before = await talker.stats()
    due = [expected.of(number, 64) for number in range(len(NAMES), len(ALL))]
    outputs = await asyncio.gather(*(talker.run(talker_prompt(expected, one, max_tokens=64), quiet) for one in due))
    for output, one in zip(outputs, due, strict=True):
        assert_spoken(output, one)
    after = await talker.stats()
    assert after["resumed"] > before["resumed"]
    assert (after["informed"], after["loaded"]) == (0, 0)


async def test_sampling_is_the_seeds_in_any_company(talker: ARRunner, expected: Expected) -> None:
    prompt = talker_prompt(expected, expected.of(0), temperature=0.9, top_k=50)
    alone = await talker.run(prompt, quiet)
    greedy = talker_prompt(expected, expected.of(0), temperature=0.9, top_k=50, residual_temperature=0.0)
    again, other, likeliest = await asyncio.gather(
        talker.run(prompt, quiet), talker.run(replace(prompt, seed=2), quiet), talker.run(greedy, quiet)
    )
    assert torch.equal(frames_of(alone), frames_of(again))
    assert not torch.equal(frames_of(alone)[:1], frames_of(likeliest)[:1])
    assert list(alone.token_ids) != list(other.token_ids)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"user": torch.zeros(4, 128)}, "user"),
        ({"reply": torch.zeros(4, 64)}, "reply"),
        ({"tts": [torch.zeros(1)]}, "tts"),
        ({"media": torch.tensor([10_000])}, "media"),
        ({"speaker": 10_000}, "speaker"),
        ({"mrope_positions": torch.zeros(3, 5, dtype=torch.int64)}, "mrope_positions"),
        ({"mrope_delta": 7}, "mrope_delta"),
        ({"residual_temperature": -1.0}, "residual_temperature"),
        ({"residual_top_k": "many"}, "residual_top_k"),
        ({"residual_top_p": None}, "residual_top_p"),
        ({"reply": torch.zeros(2, 128)}, "reply"),
    ],
)
async def test_information_that_does_not_fit_fails_that_request_alone(
    talker: ARRunner, expected: Expected, changes: dict[str, Any], field: str
) -> None:
    good = talker_prompt(expected, expected.of(0))
    bad = replace(good, additional_information={**good.additional_information, **changes})
    failed, output = await asyncio.gather(talker.run(bad, quiet), talker.run(good, quiet), return_exceptions=True)
    assert isinstance(failed, ModelError)
    assert (failed.field, failed.stage) == (field, "talker")
    assert isinstance(output, OmniModelRunnerOutput)
    assert_spoken(output, expected.of(0))


@pytest.mark.parametrize(
    ("field", "engine"),
    [
        ("engine.hidden_layers", {"hidden_layers": {"late": 1}}),
        ("engine.pipeline_parallel_size", {"pipeline_parallel_size": 2}),
        (
            "engine.speculative_config",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
        ),
    ],
)
async def test_what_the_talker_s_class_cannot_is_refused_before_its_engine_starts(
    tiny_qwen3_omnis: TinyCheckpoints, tmp_path: Path, field: str, engine: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="Qwen3OmniTalker") as caught:
        await small(tiny_qwen3_omnis(0), "talker", tmp_path, **engine).start()
    assert (caught.value.field, caught.value.stage) == (field, None)
