"""Stages on vLLM, where it is installed: rows against those of Transformers, and three stages at once."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("vllm")

from omni_jobs.settings import Settings
from tests.gpu.conftest import Record
from tests.oracles.captured_rows import check_rows
from tests.oracles.causal_lm import build_causal_lm
from workers.offline import OmniLLM, OmniOutput
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.runners.base_runner import BaseRunner
from workers.runners.pooling.engine_settings import PoolingEngine
from workers.runners.pooling.parameters import PoolingParameters
from workers.runners.pooling.pooling_runner import PoolingRunner
from workers.runners.pooling.prompt import PoolingPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput, Progress

ROOT = Path(__file__).parents[2]
TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}  # a card may multiply float32 in fewer bits
LENGTHS = (1, 5, 17, 40, 90)
NEW_TOKENS = 12
SMALL = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8, "kv_cache_memory_bytes": 1 << 24}


@pytest.fixture(scope="module")
def causal_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_causal_lm(tmp_path_factory.mktemp("causal_lm"))


@pytest.fixture(scope="module")
def oracle(causal_lm: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(causal_lm, dtype=torch.float32).model.eval()


def args(checkpoint: Path, component: str | None, device: torch.device, engine: Any) -> OmniEngineArgs:
    kind: Any = device.type
    model = OmniModelConfig(checkpoint, "causal_lm", component)
    return OmniEngineArgs("stage", model, kind, device.index, 8, engine)


def nothing(_: Progress) -> None:
    """A sink for progress nobody reads."""


def outputs_of(runner: BaseRunner[Any, Any], prompts: list[Any]) -> list[OmniModelRunnerOutput]:
    """Start a runner, run the prompts in one batch, and close it."""

    async def scenario() -> list[OmniModelRunnerOutput]:
        await runner.start()  # type: ignore[attr-defined]
        try:
            return await asyncio.gather(*(runner.run(each, nothing) for each in prompts))
        finally:
            await runner.close()  # type: ignore[attr-defined]

    return asyncio.run(scenario())


def token_ids(length: int) -> list[int]:
    return torch.randint(1, 250, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def largest_difference(found: torch.Tensor, tokens: list[int], oracle: Any) -> float:
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).last_hidden_state[0]
    assert found.shape == expected.shape
    return float((found.float() - expected).abs().max())


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graphs"])
def test_captured_rows_are_those_of_transformers(
    enforce_eager: bool, causal_lm: Path, oracle: Any, device: torch.device, record: Record
) -> None:
    if device.type == "cpu" and not enforce_eager:
        pytest.skip("a CPU has no graphs")
    engine = ArEngine(**SMALL, enforce_eager=enforce_eager, hidden_layers={"second": 1})
    parameters = ArParameters(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    prompts = [
        OmniTokensPrompt(token_ids(length), {}, parameters, seed=1, capture=length != 5) for length in (*LENGTHS, 40)
    ]
    outputs = outputs_of(ARRunner(args(causal_lm, None, device, engine)), prompts)
    differences = []
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output.token_ids) == NEW_TOKENS
        if not prompt.capture:
            assert output.hidden_states is None
            continue
        assert output.hidden_states is not None
        tokens = [*prompt.prompt_token_ids, *output.token_ids[:-1]]
        differences.append(largest_difference(output.hidden_states, tokens, oracle))
        assert isinstance(output.multimodal_outputs["second"], torch.Tensor)
        assert len(output.multimodal_outputs["second"]) == len(tokens)
    record(f"captured rows, {'eager' if enforce_eager else 'graphs'}: largest difference", "", differences)
    assert max(differences) <= TOLERANCE[device.type]


def test_rows_of_a_pooling_stage_are_those_of_transformers(
    causal_lm: Path, oracle: Any, device: torch.device, record: Record
) -> None:
    engine = PoolingEngine(**{**SMALL, "max_num_batched_tokens": 256})
    prompts = [PoolingPrompt(token_ids(length), PoolingParameters(), 0, token_ids(3)) for length in LENGTHS]
    outputs = outputs_of(PoolingRunner(args(causal_lm, "encoder", device, engine)), prompts)
    differences = []
    for prompt, output in zip(prompts, outputs, strict=True):
        for name, tokens in (("prompt_embeds", prompt.prompt_token_ids), ("negative_prompt_embeds", token_ids(3))):
            rows = output.multimodal_outputs[name]
            assert isinstance(rows, torch.Tensor)
            differences.append(largest_difference(rows, list(tokens), oracle))
    record("rows of a pooling stage: largest difference", "", differences)
    assert max(differences) <= TOLERANCE[device.type]


def test_three_stages_of_qwen2_5_omni_speak(qwen2_5_omni: Path, device: torch.device, tmp_path: Path) -> None:
    """``OmniLLM``: thinker, talker and code2wav on one device, for several requests at once."""
    settings = Settings(device=str(device), spool_dir=tmp_path)
    request = {
        "messages": [{"role": "user", "content": "Say something"}],
        "modalities": ["text", "audio"],
        "stages": {
            "thinker": {"max_tokens": 16},
            "talker": {"max_tokens": 40, "min_tokens": 40, "temperature": 0.0, "repetition_penalty": 1.0},
        },
    }
    with OmniLLM("qwen2_5_omni", model=qwen2_5_omni, settings=settings) as llm:
        results = llm.generate([request] * 3)
    for result in results:
        assert isinstance(result, OmniOutput), result
        assert result.text
        assert result.audio is not None
        assert result.audio[:4] == b"RIFF"
        assert len(result.audio) > 44
    assert len({result.text for result in results if isinstance(result, OmniOutput)}) == 1


def test_the_worker_without_a_stage(causal_lm: Path, device: torch.device, tmp_path: Path) -> None:
    """``examples/rows``, which lets vLLM choose its device."""
    command = [
        sys.executable,
        "-m",
        "examples.rows.rows",
        str(causal_lm),
        "--dtype",
        "float32",
        "--out",
        str(tmp_path / "rows.safetensors"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    check_rows(causal_lm, load_file(tmp_path / "rows.safetensors"), done.stdout, TOLERANCE[device.type])
