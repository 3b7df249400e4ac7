"""Guessed tokens change nothing: text, hidden states, layers and codes are those of an engine that guesses none.

Each engine has 64 tokens a step and little room for keys and values, so that prompts come in chunks and push each other
out. A draft that is the model's, but for some noise, is right at times and wrong at times.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from examples.tinted.tinted.tiny_checkpoint import build_tiny_checkpoint
from omni_jobs.errors import ConfigError
from tests.integration.runners.test_ar_talker import Talker
from tests.oracles.ar import CASES, LENGTHS, quiet, text
from tests.oracles.ar import runner as omni_runner
from tests.oracles.mtp import build_mtp_checkpoint
from tests.oracles.reference import Reference
from tests.oracles.tinted import TintedReference
from tests.processes import one_process_an_engine
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
EMBEDDED = {"embedded": 0}
LAYERS = {**EMBEDDED, "second": 1}
CROWDED: Mapping[str, Any] = {
    "block_size": 32,
    "kv_cache_memory_bytes": 1 << 20,
    "max_model_len": 512,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
}
WORDS = [f"{n} " * 40 for n in range(6)] + ["abcabcabc" * n for n in (1, 5, 9)]
TOKENS = 60


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def draft(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with noise on its weights."""
    return _changed(checkpoint, tmp_path_factory.mktemp("draft"), noise=0.2)


def _changed(checkpoint: Path, directory: Path, noise: float) -> Path:
    generator = torch.Generator().manual_seed(1)
    for each in checkpoint.glob("*.json"):
        (directory / each.name).write_bytes(each.read_bytes())
    weights = {
        name: weight + noise * weight.std() * torch.randn(weight.shape, generator=generator)
        for name, weight in load_file(checkpoint / "model.safetensors").items()
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def language_model(checkpoint: Path, spool: Path, **engine: Any) -> ARRunner:
    model = OmniModelConfig(checkpoint, "causal_lm", None)
    room = {
        "max_model_len": 256,
        "kv_cache_memory_bytes": (2 if "model" in engine.get("speculative_config", {}) else 1) << 20,
    }
    small = {"dtype": "float32", "enforce_eager": True, **CROWDED, **room}  # a draft has keys and values, too
    settings: Any = ArEngine.model_validate({**small, **engine})
    return ARRunner(OmniEngineArgs("chat", model, "cpu", None, 16, settings, spool_dir=spool))


def prompt(words: str) -> OmniTokensPrompt:
    parameters = ArParameters(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    return OmniTokensPrompt(list(words.encode()), {}, parameters, seed=1, capture=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[OmniModelRunnerOutput]:
    """What an engine makes of ``WORDS`` that guesses nothing."""
    found = language_model(checkpoint, tmp_path_factory.mktemp("spool"), hidden_layers=LAYERS)
    with one_process_an_engine():
        await found.start()
    outputs = [await found.run(prompt(words), quiet) for words in WORDS]
    await found.close()
    return outputs


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
async def test_a_language_model_s_text_rows_and_layers(
    checkpoint: Path, draft: Path, tmp_path: Path, plain: list[OmniModelRunnerOutput], method: str
) -> None:
    guesses = {
        "ngram": NGRAM,
        "draft_model": {"method": "draft_model", "num_speculative_tokens": 3, "model": str(draft)},
    }
    found = language_model(checkpoint, tmp_path, speculative_config=guesses[method], hidden_layers=LAYERS)
    with one_process_an_engine():
        await found.start()
    try:
        alone = await found.run(prompt(WORDS[-1]), quiet)
        counts = await found.stats()
        outputs = await asyncio.gather(*(found.run(prompt(words), quiet) for words in WORDS))
        after = await found.stats()
    finally:
        await found.close()
    expected = TintedReference(checkpoint)
    for words, output, other in zip([*WORDS, WORDS[-1]], [*outputs, alone], [*plain, plain[-1]], strict=True):
        due = expected.generate(list(words.encode()), {}, 1)
        assert output.token_ids[0] == due.token_ids[0]
        assert list(output.token_ids) == list(other.token_ids)
        assert output.hidden_states is not None
        assert other.hidden_states is not None
        assert output.hidden_states.shape == (len(words) + TOKENS - 1, 128)
        assert torch.allclose(output.hidden_states, other.hidden_states, rtol=0, atol=1e-4)
        for name in LAYERS:
            rows, same = output.multimodal_outputs[name], other.multimodal_outputs[name]
            assert isinstance(rows, torch.Tensor)
            assert isinstance(same, torch.Tensor)
            assert torch.allclose(rows, same, rtol=0, atol=1e-4), name
    assert counts["captured_steps"] < TOKENS, "no guess was right"
    assert counts["captured_rows"] > len(WORDS[-1]) + TOKENS - 1, "no guess was wrong"
    assert after["resumed"] > 0
    assert (after["held_captures"], after["held_bytes"]) == (0, 0)


async def test_the_guessing_layers_of_a_checkpoint(tmp_path: Path) -> None:
    """The model has experts, too."""
    checkpoint = build_mtp_checkpoint(tmp_path / "model")
    guess = {"method": "mtp", "num_speculative_tokens": 2}
    counts, made = [], []
    for engine in ({}, {"speculative_config": guess}):
        found = language_model(
            checkpoint, tmp_path / "spool", hidden_layers=EMBEDDED, **engine, kv_cache_memory_bytes=3 << 20
        )
        with one_process_an_engine():
            await found.start()
        try:
            made.append([await found.run(prompt(WORDS[-1]), quiet)])
            counts.append(await found.stats())
            made[-1] += await asyncio.gather(*(found.run(prompt(words), quiet) for words in WORDS))
        finally:
            await found.close()
    for output, same in zip(*made, strict=True):
        assert list(output.token_ids) == list(same.token_ids)
        for name in ("hidden_states", *EMBEDDED):
            rows, due = (
                each.hidden_states if name == "hidden_states" else each.multimodal_outputs[name]
                for each in (output, same)
            )
            assert isinstance(rows, torch.Tensor)
            assert isinstance(due, torch.Tensor)
            assert torch.allclose(rows, due, rtol=0, atol=1e-4), name
    plain, guessed = counts
    assert guessed["captured_steps"] < plain["captured_steps"], "no guess was right"
    assert guessed["captured_rows"] > plain["captured_rows"], "no guess was wrong"


async def test_the_thinker_s_text_and_rows(tiny_checkpoint: Path, tmp_path: Path) -> None:
    reference = Reference(tiny_checkpoint)
    found = omni_runner(tiny_checkpoint, "thinker", tmp_path, **{**CROWDED, "speculative_config": NGRAM})
    with one_process_an_engine():
        await found.start()
    cases = [*CASES.values(), *LENGTHS, *(text(f"{n} " * 60) for n in range(3))]
    cases = [case for name, case in CASES.items() if name != "video"] + cases[len(CASES) :]
    try:
        outputs = await asyncio.gather(*(found.run(case.prompt(reference), quiet) for case in cases))
        after = await found.stats()
    finally:
        await found.close()
    due = 0
    for output, case in zip(outputs, cases, strict=True):
        expected = case.expected(reference)
        assert list(output.token_ids) == expected.thinker_tokens
        assert output.hidden_states is not None
        assert expected.hidden_rows is not None
        assert torch.allclose(output.hidden_states, expected.hidden_rows, rtol=0, atol=1e-4)
        due += len(output.hidden_states)
    assert after["captured_rows"] > due


async def test_the_talker_s_codes_with_a_penalty(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Each input depends on its position, as the thinker's rows stand; the penalty, on the codes before a guess."""
    found = omni_runner(tiny_checkpoint, "talker", tmp_path, **{**CROWDED, "speculative_config": NGRAM})
    with one_process_an_engine():
        await found.start()
    talker = Talker(tiny_checkpoint, found)
    try:
        case = CASES["audio+image"]
        expected = [case.expected(talker.reference), *(case.expected(talker.reference) for case in LENGTHS)]
        prompts = [talker.prompt(expected[0], talker.positions(case)), *(talker.prompt(each) for each in expected[1:])]
        outputs = await asyncio.gather(*(found.run(each, quiet) for each in prompts))
        assert (await found.stats())["resumed"] > 0
    finally:
        await found.close()
    assert [list(output.token_ids) for output in outputs] == [each.talker_codes for each in expected]


@pytest.mark.parametrize("broken", ["words", "pickle", "gone"])
async def test_a_draft_of_another_model_is_refused(checkpoint: Path, draft: Path, tmp_path: Path, broken: str) -> None:
    other = _changed(checkpoint, tmp_path, noise=0)
    message = "no such checkpoint directory"
    if broken == "words":
        message = "the draft has 300 tokens and the model 257: they need the same"
        config = (other / "config.json").read_text()
        (other / "config.json").write_text(config.replace('"vocab_size": 257', '"vocab_size": 300'))
    elif broken == "pickle":
        message = "the draft has no weights in safetensors"
        (other / "model.safetensors").rename(other / "pytorch_model.bin")
    else:
        other = other / "nothing"
    guess = {"method": "draft_model", "num_speculative_tokens": 3, "model": str(other)}
    with pytest.raises(ConfigError, match=message) as caught:
        await language_model(checkpoint, tmp_path, speculative_config=guess).start()
    assert caught.value.field == "engine.speculative_config.model"
