"""Qwen2.5-VL on vLLM: tokens, hidden states and positions as Transformers has them, in any company."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from omni_jobs.errors import ModelError
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.prompts.renderers import load_renderer
from tests.oracles.ar import quiet, runner
from tests.oracles.qwen2_5_vl import QwenVlReference, VlResult
from tests.oracles.vision_cases import CASES, LENGTHS, VisionCase, case
from tests.processes import one_process_an_engine
from tests.services.checkpoint import TinyCheckpoints
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt, PromptSpan
from workers.stages.types import OmniModelRunnerOutput

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

PIPELINE = load_pipeline(Path(__file__).parents[3] / "stage_configs" / "qwen2_5_vl.yaml")
TOKENS = 24


class Expected:
    """What Transformers gives, each case once."""

    def __init__(self, checkpoint: Path) -> None:
        self.reference = QwenVlReference(checkpoint)
        self._found: dict[tuple[int, int], tuple[VisionCase, VlResult]] = {}

    def of(self, case: VisionCase, max_tokens: int = TOKENS) -> VlResult:
        key = id(case), max_tokens
        if key not in self._found:
            self._found[key] = case, self.reference.generate(case.messages, case.media, max_tokens)
        return self._found[key][1]


@pytest.fixture(scope="module")
def expected(tiny_qwen_vls: TinyCheckpoints) -> Expected:
    return Expected(tiny_qwen_vls(0))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowded(tiny_qwen_vls: TinyCheckpoints, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ARRunner]:
    """64 tokens a step and a KV cache of 1024: prompts come in chunks, and requests push each other out."""
    found = runner(
        tiny_qwen_vls(0),
        "llm",
        tmp_path_factory.mktemp("spool"),
        PIPELINE,
        dtype="float32",
        block_size=32,
        kv_cache_memory_bytes=1 << 20,
        max_model_len=512,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        limit_mm_per_prompt={"image": 4},
    )
    with one_process_an_engine():
        await found.start()
    yield found
    await found.close()


def assert_equal(output: OmniModelRunnerOutput, expected: VlResult) -> None:
    assert list(output.prompt_token_ids) == expected.prompt_ids
    assert list(output.token_ids) == expected.tokens
    assert output.text == expected.text
    if output.hidden_states is None:
        return
    assert output.hidden_states.shape == expected.hidden_rows.shape
    assert torch.allclose(output.hidden_states, expected.hidden_rows, rtol=0, atol=1e-4)
    positions = output.multimodal_outputs["mrope_positions"]
    assert isinstance(positions, torch.Tensor)
    assert torch.equal(positions, expected.positions)
    assert output.values["mrope_delta"] == int(positions.max()) + 1 - len(expected.prompt_ids)


async def run(llm: ARRunner, expected: Expected, case: VisionCase, **options: object) -> OmniModelRunnerOutput:
    given = {"max_tokens": TOKENS, **options}
    return await llm.run(case.prompt(expected.reference.prompt(case.messages), **given), quiet)  # type: ignore[arg-type]


async def test_the_model_is_what_vllm_read_of_it(crowded: ARRunner, tiny_qwen_vls: TinyCheckpoints) -> None:
    """With the stage's engine arguments; what the API reads without vLLM agrees."""
    model, renderer = crowded.model, load_renderer("qwen2_5_vl", tiny_qwen_vls(0))
    assert (model.dtype, model.max_model_len, model.media_limits) == (torch.float32, 512, {"image": 4})
    assert (model.hidden_size, model.embeds_size) == (renderer.hidden_size, renderer.hidden_size)
    config = model.hf_config.get_text_config()
    assert (model.vocabulary_size, model.layers) == (config.vocab_size, config.num_hidden_layers)


@pytest.mark.parametrize("name", CASES)
async def test_equal_to_transformers_in_chunks(crowded: ARRunner, expected: Expected, name: str) -> None:
    assert_equal(await run(crowded, expected, CASES[name]), expected.of(CASES[name]))


async def test_mixed_batches_with_preemption_and_recomputation(crowded: ARRunner, expected: Expected) -> None:
    """Texts, pictures and videos at once, most captured, with replies so long that the cache does not hold all."""
    cases = [*CASES.values(), *LENGTHS]
    before = await crowded.stats()
    outputs = await asyncio.gather(
        *(run(crowded, expected, each, max_tokens=120, capture=n % 3 != 2) for n, each in enumerate(cases))
    )
    after = await crowded.stats()
    assert after["resumed"] > before["resumed"]
    for n, (output, each) in enumerate(zip(outputs, cases, strict=True)):
        assert (output.hidden_states is not None) == (n % 3 != 2)
        assert_equal(output, expected.of(each, 120))
    assert (after["held_captures"], after["held_bytes"]) == (0, 0)


async def test_the_same_picture_elsewhere_is_not_mistaken(crowded: ARRunner, expected: Expected) -> None:
    """The prefix cache tells pictures apart by what they show, not by the tokens of their places."""
    (picture,) = CASES["picture"].media["image"]
    turned = picture.transpose(0)
    cases = [case("x" * 64, each, "What is it?") for each in (picture, turned, picture)]
    before = await crowded.stats()
    outputs = [await run(crowded, expected, each, capture=False) for each in cases]
    for output, each in zip(outputs, cases, strict=True):
        assert_equal(output, expected.of(each))
    assert list(outputs[0].token_ids) != list(outputs[1].token_ids)
    assert (await crowded.stats())["cached_tokens"] > before["cached_tokens"]


async def test_embeddings_stand_in_place_of_a_prompt(crowded: ARRunner, expected: Expected) -> None:
    due = expected.of(CASES["text"])
    with torch.no_grad():
        embeds = expected.reference.model.get_input_embeddings()(torch.tensor(due.prompt_ids))
    prompt = OmniTokensPrompt(
        (), {}, ArParameters(temperature=0, max_tokens=TOKENS), seed=1, capture=False, prompt_embeds=embeds
    )
    output, seen = await asyncio.gather(crowded.run(prompt, quiet), run(crowded, expected, CASES["picture"]))
    assert list(output.token_ids) == due.tokens
    assert_equal(seen, expected.of(CASES["picture"]))


async def test_embeddings_stand_in_a_part_of_a_prompt(crowded: ARRunner, expected: Expected) -> None:
    """Those of the tokens that another token stands for, beside pictures: the answer is that of the tokens."""
    due = expected.of(CASES["text"])
    with torch.no_grad():
        embeds = expected.reference.model.get_input_embeddings()(torch.tensor(due.prompt_ids))
    begin, end = 2, len(due.prompt_ids) - 3
    token_ids = [0 if begin <= n < end else token for n, token in enumerate(due.prompt_ids)]
    parameters = ArParameters(temperature=0, max_tokens=TOKENS)
    spans = [PromptSpan(begin, embeds[begin:end])]
    prompt = OmniTokensPrompt(token_ids, {}, parameters, seed=1, capture=True, prompt_spans=spans)
    output, seen = await asyncio.gather(crowded.run(prompt, quiet), run(crowded, expected, CASES["picture"]))
    assert_equal(output._replace(prompt_token_ids=due.prompt_ids), due)
    assert_equal(seen, expected.of(CASES["picture"]))


async def test_bad_pictures_fail_alone(crowded: ARRunner, expected: Expected) -> None:
    """What admission lets through: more pictures than the stage's engine takes, and a picture of extreme sides."""
    (picture,) = CASES["picture"].media["image"]
    many, narrow = case(*[picture] * 5, "Which?"), case(picture.resize((28 * 201, 28)), "Long?")
    failed_many, failed_narrow, good = await asyncio.gather(
        crowded.run(many.prompt(expected.reference.prompt(many.messages), max_tokens=4), quiet),
        crowded.run(narrow.prompt(expected.reference.prompt(narrow.messages), max_tokens=4), quiet),
        run(crowded, expected, CASES["picture"]),
        return_exceptions=True,
    )
    assert isinstance(failed_many, ModelError)
    assert "At most 4 image(s)" in str(failed_many)
    assert isinstance(failed_narrow, ModelError)
    assert isinstance(good, OmniModelRunnerOutput)
    assert_equal(good, expected.of(CASES["picture"]))
