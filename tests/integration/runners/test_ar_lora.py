"""LoRA modules of an AR stage: one engine runs jobs with either of two adapters and without, in one batch."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from examples.tinted.tinted.tiny_checkpoint import build_tiny_checkpoint
from omni_jobs.errors import ConfigError, ModelError
from tests.oracles.ar import quiet
from tests.oracles.lora import build_adapter, merge
from tests.oracles.tinted import TintedReference
from tests.processes import one_process_an_engine
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "block_size": 32,
    "max_model_len": 256,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
}
WORDS = ("Hello there", "some more words " * 3, "and many " * 12)


@dataclass(frozen=True)
class Adapted:
    """The stage on its engine, the oracles by adapter, and a directory for more adapters."""

    runner: ARRunner
    references: dict[str | None, TintedReference]
    checkpoint: Path
    directory: Path

    async def run(self, words: str, lora: str | None, *, capture: bool = False) -> OmniModelRunnerOutput:
        return await self.runner.run(prompt(words, lora, capture=capture), quiet)


def prompt(words: str, lora: str | None, *, capture: bool = False) -> OmniTokensPrompt:
    parameters = ArParameters(temperature=0, max_tokens=24, lora=lora)
    return OmniTokensPrompt(list(words.encode()), {}, parameters, seed=1, capture=capture)


def runner(checkpoint: Path, spool: Path | None, **engine: Any) -> ARRunner:
    model = OmniModelConfig(checkpoint, "causal_lm", None)
    settings: Any = ArEngine.model_validate({**ENGINE, **engine})
    return ARRunner(OmniEngineArgs("chat", model, "cpu", None, 16, settings, spool_dir=spool))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Adapted]:
    directory = tmp_path_factory.mktemp("lora")
    checkpoint = build_tiny_checkpoint(directory / "base")
    adapters = {name: build_adapter(checkpoint, directory / name, seed) for seed, name in enumerate(("loud", "soft"))}
    references: dict[str | None, TintedReference] = {None: TintedReference(checkpoint)}
    for name, adapter in adapters.items():
        references[name] = TintedReference(merge(checkpoint, adapter, directory / f"merged-{name}"))
    modules = {name: str(adapter) for name, adapter in adapters.items()}
    started = runner(checkpoint, tmp_path_factory.mktemp("spool"), lora_modules=modules)
    with one_process_an_engine():
        await started.start()
    yield Adapted(started, references, checkpoint, directory)
    await started.close()


async def test_a_batch_with_two_adapters_and_without_equals_the_merged_checkpoints(adapted: Adapted) -> None:
    """Tokens and captured hidden states; the prompts are longer than a step, and are the same for each adapter."""
    cases = [(words, lora) for words in WORDS for lora in (None, "loud", "soft")]
    outputs = await asyncio.gather(*(adapted.run(*case, capture=n % 2 == 0) for n, case in enumerate(cases)))
    said = set()
    for (words, lora), output in zip(cases, outputs, strict=True):
        expected = adapted.references[lora].generate(list(words.encode()), {}, 24)
        assert list(output.token_ids) == expected.token_ids, (words, lora)
        if output.hidden_states is not None:
            assert torch.allclose(output.hidden_states, expected.rows, rtol=0, atol=1e-3)
        said.add(tuple(output.token_ids))
    assert len(said) == len(cases)


async def test_a_prompt_in_the_prefix_cache_is_not_read_by_another_adapter(adapted: Adapted) -> None:
    words = "the same long beginning " * 4
    for lora in (None, "loud", None, "soft", "loud"):
        before = await adapted.runner.stats()
        output = await adapted.run(words, lora)
        assert list(output.token_ids) == adapted.references[lora].generate(list(words.encode()), {}, 24).token_ids
        cached = (await adapted.runner.stats())["cached_tokens"] - before["cached_tokens"]
    assert cached > 0  # the last one's, by the second


async def test_a_module_that_the_stage_does_not_list_fails_that_job(adapted: Adapted) -> None:
    failed, output = await asyncio.gather(
        adapted.run(WORDS[0], "other"), adapted.run(WORDS[0], "loud"), return_exceptions=True
    )
    assert isinstance(failed, ModelError)
    assert (failed.field, failed.stage) == ("lora", "chat")
    assert "it has loud, soft" in str(failed)
    assert isinstance(output, OmniModelRunnerOutput)


async def test_an_adapter_of_another_model_is_refused(adapted: Adapted) -> None:
    adapter = build_adapter(adapted.checkpoint, adapted.directory / "other", seed=3)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    engine = adapted.runner._running()
    with pytest.raises(ConfigError, match=r"vLLM cannot load it: .*DoRA") as caught:
        await engine.load_adapters({"other": str(adapter)})
    assert caught.value.field == "engine.lora_modules.other"
    output = await adapted.run(WORDS[0], "loud")
    assert list(output.token_ids) == adapted.references["loud"].generate(list(WORDS[0].encode()), {}, 24).token_ids


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("gone", "no such checkpoint directory"),
        ("weights", "the adapter lacks this file"),
        ("config", "adapter_config.json: the checkpoint lacks this file"),
        ("rank", "the adapter's rank is 32: set engine.max_lora_rank, which is 16"),
        ("pattern", "the adapter's rank is 64"),
    ],
)
async def test_a_directory_that_holds_no_adapter_is_refused_before_the_engine_starts(
    tmp_path: Path, adapted: Adapted, broken: str, message: str
) -> None:
    adapter = build_adapter(adapted.checkpoint, tmp_path / "adapter", seed=4, rank=32 if broken == "rank" else 8)
    if broken == "weights":
        (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    if broken == "config":
        (adapter / "adapter_config.json").unlink()
    if broken == "pattern":
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "rank_pattern": {"q_proj": 64}}))
    path = tmp_path / "gone" if broken == "gone" else adapter
    with pytest.raises(ConfigError, match=message) as caught:
        await runner(adapted.checkpoint, tmp_path / "spool", lora_modules={"mine": str(path)}).start()
    assert (caught.value.field, caught.value.stage) == ("engine.lora_modules.mine", "chat")
