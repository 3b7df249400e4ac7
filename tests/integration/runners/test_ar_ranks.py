"""An engine of two ranks, whether they share each layer or have half of the layers each, is one of a single rank.

In a pipeline of ranks the first has the embeddings that a row of the thinker is made of, the last the hidden states.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ConfigError
from omni_jobs.settings import Settings
from tests.integration.runners.test_ar_talker import Talker
from tests.integration.runners.test_glm_image_tokens import PIPELINE, STAGE, Generate
from tests.oracles.ar import CASES, LENGTHS, quiet, text
from tests.oracles.ar import runner as omni_runner
from tests.oracles.reference import Reference
from tests.services.checkpoint import TinyCheckpoints
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.engine_settings import ArEngine
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.stage import Stage

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

CROWDED: Mapping[str, Any] = {
    "block_size": 32,
    "kv_cache_memory_bytes": 1 << 20,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
}
TENSOR, PIPED = {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}
BOTH_WAYS = pytest.mark.parametrize("ranks", [TENSOR, PIPED], ids=["tensor", "pipeline"])


@asynccontextmanager
async def started(found: ARRunner) -> AsyncIterator[ARRunner]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # two ranks, on however few cores
        await found.start()
    try:
        yield found
    finally:
        await found.close()


@BOTH_WAYS
async def test_the_thinker_s_text_and_rows(tiny_checkpoint: Path, tmp_path: Path, ranks: dict[str, int]) -> None:
    """Prompts with media, in chunks, beside some that are not captured."""
    reference = Reference(tiny_checkpoint)
    cases = [case for name, case in CASES.items() if name != "video"] + LENGTHS + [text(f"{n} " * 60) for n in range(3)]
    engine = {**CROWDED, **ranks}
    async with started(omni_runner(tiny_checkpoint, "thinker", tmp_path, **engine)) as thinker:
        outputs = await asyncio.gather(
            *(thinker.run(case.prompt(reference, capture=n % 4 != 2), quiet) for n, case in enumerate(cases))
        )
        counts = await thinker.stats()
        assert list(tmp_path.rglob("*inputs")) == []
    for n, (output, case) in enumerate(zip(outputs, cases, strict=True)):
        expected = case.expected(reference)
        assert list(output.token_ids) == expected.thinker_tokens
        if n % 4 == 2:
            assert output.hidden_states is None
            continue
        assert output.hidden_states is not None
        assert expected.hidden_rows is not None
        assert output.hidden_states.shape == expected.hidden_rows.shape
        assert torch.allclose(output.hidden_states, expected.hidden_rows, rtol=0, atol=1e-4)
        assert isinstance(output.multimodal_outputs["mrope_positions"], torch.Tensor)
    assert (counts["held_captures"], counts["held_bytes"]) == (0, 0)


@BOTH_WAYS
async def test_the_talker_s_codes(tiny_checkpoint: Path, tmp_path: Path, ranks: dict[str, int]) -> None:
    engine = {**CROWDED, **ranks}
    async with started(omni_runner(tiny_checkpoint, "talker", tmp_path, **engine)) as runner:
        talker = Talker(tiny_checkpoint, runner)
        media = CASES["audio+image"]
        expected = [media.expected(talker.reference), *(case.expected(talker.reference) for case in LENGTHS)]
        prompts = [talker.prompt(expected[0], talker.positions(media)), *(talker.prompt(each) for each in expected[1:])]
        outputs = await asyncio.gather(*(runner.run(each, quiet) for each in prompts))
    assert [list(output.token_ids) for output in outputs] == [each.talker_codes for each in expected]


@BOTH_WAYS
async def test_the_tokens_of_pictures(tiny_glm_images: TinyCheckpoints, tmp_path: Path, ranks: dict[str, int]) -> None:
    checkpoint = tiny_glm_images(0)
    args = OmniEngineArgs.for_stage(
        STAGE, Stage(PIPELINE, STAGE, checkpoint).model, Settings(device="cpu", spool_dir=tmp_path)
    )
    engine = {**args.engine.model_dump(exclude_unset=True), **CROWDED, **ranks}
    async with started(ARRunner(replace(args, engine=ArEngine(**engine)))) as runner:
        generate = Generate(checkpoint, runner)
        cases = [("A lighthouse", 64, 96), ("灯台, at dusk 🙂 " * 9, 320, 64), ("x", 64, 64)]
        outputs = await generate.run(*(generate.prompt(*case) for case in cases))
        for output, (words, height, width) in zip(outputs, cases, strict=True):
            due = generate.reference.tokens(words, height, width)
            assert list(output.token_ids) == due[-(height // 32 * width // 32) :]


async def test_what_a_pipeline_of_ranks_does_not_give_is_refused(tiny_checkpoint: Path, tmp_path: Path) -> None:
    guesses = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
    refused: dict[str, dict[str, Any]] = {
        "engine.hidden_layers.early": {"hidden_layers": {"early": 1}},
        "engine.speculative_config": {"speculative_config": guesses},
    }
    for field, engine in refused.items():
        with pytest.raises(ConfigError, match=r"pipeline") as caught:
            await omni_runner(tiny_checkpoint, "thinker", tmp_path, **engine, **PIPED).start()
        assert caught.value.field == field
