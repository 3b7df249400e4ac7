"""GLM-Image's language model on vLLM: image tokens as Transformers has them.

One engine with 64 tokens a step and a small KV cache, so that prompts come in chunks and batches push each other out.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from PIL import Image

from omni_jobs.errors import ModelError
from omni_jobs.payloads import Payload
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.settings import Settings
from tests.oracles.ar import quiet
from tests.oracles.glm_image import GlmImageReference
from tests.processes import one_process_an_engine
from tests.services.checkpoint import TinyCheckpoints
from tests.source_pictures import drawn, encoded, source_of
from workers.models.glm_image.parameters import GenerateParameters
from workers.models.glm_image.processors import Text2TokensProcessor
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput, Progress, StageInput

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

PIPELINE = load_pipeline(Path(__file__).parents[3] / "stage_configs" / "glm_image.yaml")
STAGE = PIPELINE.stage("generate")


class Generate:
    """The runner of the stage, its input processor, and the oracle."""

    def __init__(self, checkpoint: Path, runner: ARRunner) -> None:
        self.runner = runner
        self.reference = GlmImageReference(checkpoint)
        self._processor = Text2TokensProcessor(STAGE, Stage(PIPELINE, STAGE, checkpoint).model)

    def prompt(self, text: str, height: int, width: int, seed: int = 0, **parameters: object) -> OmniTokensPrompt:
        merged = {"height": height, "width": width, "temperature": 0, **parameters}
        return self._prompt(text, encoded(), GenerateParameters(**merged), seed)

    def edit(self, text: str, pictures: Sequence[Image.Image], **size: int) -> OmniTokensPrompt:
        parts = [{"type": "image", "media": number} for number in range(len(pictures))]
        sources = [source_of(token_ids) for token_ids in self.reference.source_ids(pictures)]
        parameters = GenerateParameters(temperature=0, **size)
        return self._prompt([*parts, {"type": "text", "text": text}], encoded(sources), parameters)

    def _prompt(
        self, content: object, sources: Payload, parameters: GenerateParameters, seed: int = 0
    ) -> OmniTokensPrompt:
        request = {"messages": [{"role": "user", "content": content}]}
        return self._processor(
            StageInput("job-1", request, [], {"encode": sources}, parameters, seed=seed, capture=False)
        )

    async def run(self, *prompts: OmniTokensPrompt) -> list[OmniModelRunnerOutput]:
        return list(await asyncio.gather(*(self.runner.run(prompt, quiet) for prompt in prompts)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def generate(
    tiny_glm_images: TinyCheckpoints, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Generate]:
    checkpoint = tiny_glm_images(0)
    args = OmniEngineArgs.for_stage(
        STAGE,
        Stage(PIPELINE, STAGE, checkpoint).model,
        Settings(device="cpu", spool_dir=tmp_path_factory.mktemp("spool")),
    )
    small = {"block_size": 32, "kv_cache_memory_bytes": 1 << 20, "max_num_batched_tokens": 64, "max_model_len": 1024}
    engine = ArEngine(**{**args.engine.model_dump(exclude_unset=True), **small})
    runner = ARRunner(replace(args, engine=engine))
    with one_process_an_engine():
        await runner.start()
    yield Generate(checkpoint, runner)
    await runner.close()


async def test_tokens_equal_to_transformers(generate: Generate) -> None:
    for text, height, width in (("A lighthouse", 64, 96), ("灯台, at dusk 🙂 " * 9, 320, 64), ("x", 64, 64)):
        prompt = generate.prompt(text, height, width)
        expected = generate.reference.tokens(text, height, width)
        assert list(prompt.prompt_token_ids) == generate.reference.prompt(text, height, width)["input_ids"][0].tolist()
        seen: list[Progress] = []
        output = await generate.runner.run(prompt, seen.append)
        target = height // 32 * width // 32
        assert list(output.token_ids) == expected[-target:]
        assert output.usage == {"prompt_tokens": len(prompt.prompt_token_ids), "completion_tokens": len(expected)}
        assert (output.values["height"], output.values["width"], output.finish_reason) == (height, width, "stop")
        assert (seen[-1].done, seen[-1].total) == (len(expected), len(expected))


async def test_an_edits_tokens_equal_to_transformers(generate: Generate) -> None:
    """Of one picture, and of two of different sizes with a plain picture beside; prompts come in chunks."""
    one, two = [drawn(64, 96, 1)], [drawn(200, 120, 2), drawn(96, 64, 3)]
    cases = [("Make it red", one, 64, 96), ("Join them", two, 128, 64), ("word " * 20, two, 96, 96)]
    prompts = [generate.edit(text, pictures, height=height, width=width) for text, pictures, height, width in cases]
    outputs = await generate.run(*prompts, generate.prompt("A lighthouse", 64, 96))
    for (text, pictures, height, width), prompt, output in zip(cases, prompts, outputs[:-1], strict=True):
        expected = generate.reference.tokens(text, height, width, pictures)
        assert len(expected) == height // 32 * width // 32  # no preview
        assert list(output.token_ids) == expected
        assert (output.values["height"], output.values["width"]) == (height, width)
        theirs = generate.reference.prompt(text, height, width, pictures)["input_ids"][0]
        assert len(prompt.prompt_token_ids) == len(theirs)
    assert list(outputs[-1].token_ids) == generate.reference.tokens("A lighthouse", 64, 96)[-6:]
    (own_size,) = await generate.run(generate.edit("Make it red", one))
    assert (own_size.values["height"], own_size.values["width"]) == (64, 96)


async def test_a_batch_of_different_sizes_in_chunks_with_preemption(generate: Generate) -> None:
    before = await generate.runner.stats()
    cases = [("word " * (1 + 5 * n), 64 + 32 * (n % 3), 64 + 32 * n) for n in range(8)]
    expected = [generate.reference.tokens(*case) for case in cases]
    outputs = await generate.run(*(generate.prompt(*case) for case in cases))
    for (_, height, width), output, tokens in zip(cases, outputs, expected, strict=True):
        assert list(output.token_ids) == tokens[-(height // 32 * width // 32) :]
    after = await generate.runner.stats()
    assert after["resumed"] > before["resumed"]
    assert (after["informed"], after["loaded"]) == (0, 0)


async def test_sampled_tokens_depend_on_the_seed_and_not_on_their_company(generate: Generate) -> None:
    """Greedy requests beside sampled ones of every kind, because vLLM samples them all in one step."""
    kinds: list[dict[str, float | int]] = [
        {"temperature": 0.9, "top_p": 0.75},
        {"temperature": 1.0, "top_k": 50},
        {"temperature": 0},
        {"temperature": 1.5, "top_p": 1.0},
    ]
    prompts = [generate.prompt("A lighthouse", 64, 64, seed=seed, **kind) for kind in kinds for seed in (1, 2)]
    together = await generate.run(*prompts)
    alone = [(await generate.run(prompt))[0] for prompt in prompts[::2]]
    assert [output.token_ids for output in together[::2]] == [output.token_ids for output in alone]
    assert all(0 <= token < 16_384 for output in together for token in output.token_ids)
    pairs = list(zip(together[::2], together[1::2], strict=True))
    assert [one.token_ids == other.token_ids for one, other in pairs] == [False, False, True, False]


async def test_a_picture_that_the_context_cannot_hold_fails_alone(generate: Generate) -> None:
    large, small = generate.prompt("A lighthouse", 1024, 1024), generate.prompt("A lighthouse", 64, 64)
    with pytest.raises(ModelError, match="the model takes 1024") as refused:
        await generate.runner.run(large, quiet)
    assert (refused.value.field, refused.value.stage) == ("grids", "generate")
    (output,) = await generate.run(small)
    assert len(output.token_ids) == 4
    stats = await generate.runner.stats()
    assert (stats["informed"], stats["loaded"]) == (0, 0)
