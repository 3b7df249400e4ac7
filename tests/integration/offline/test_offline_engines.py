"""``OmniLLM`` with engines: their share of the cores, the budget of their captures, and their end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from omni_jobs.cores import threads_per_engine
from omni_jobs.errors import InvalidRequest
from omni_jobs.settings import Settings
from workers.offline import OmniLLM, OmniOutput
from workers.offline.omni_llm import _cores_divided

ROOT = Path(__file__).parents[3]
SET_FOR_ENGINES = ["OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_ENABLE_V1_MULTIPROCESSING"]

_SCRIPT = """
import json, os, sys
from pathlib import Path

from omni_jobs.settings import Settings
from workers.offline import OmniLLM, OmniOutput


def descendants(pid):
    for found in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in found.read_text().split():
            yield child
            yield from descendants(child)


def variables(pid):
    lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\\0")
    return dict(line.decode().split("=", 1) for line in lines if b"=" in line)


if __name__ == "__main__":
    settings = Settings(device="cpu", spool_dir=Path(sys.argv[2]), capture_bytes=1 << 20)
    request = {
        "messages": [{"role": "user", "content": "word " * 40}],
        "modalities": ["text", "audio"],
        "stages": {"thinker": {"max_tokens": 24}, "talker": {"max_tokens": 24}},
    }
    too_large = {**request, "messages": [{"role": "user", "content": "word " * 300}]}
    with OmniLLM("qwen2_5_omni", model=Path(sys.argv[1]), settings=settings) as llm:
        threads = [found.get("OMP_NUM_THREADS") for found in map(variables, descendants(os.getpid()))]
        results = llm.generate([request] * 6 + [too_large])
        left = llm.generate([request])
    print("FOUND", json.dumps({
        "threads": [found for found in threads if found],
        "audio": [isinstance(result, OmniOutput) and len(result.audio or b"") for result in results[:6] + left],
        "error": [getattr(results[6], "code", None), getattr(results[6], "stage", None), str(results[6])],
        "environment": [os.environ.get(name) for name in sys.argv[3:]],
    }), flush=True)
"""


@pytest.mark.long  # what an engine captures, test_ar_capture_budget shows
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_cores_captures_and_a_quiet_end(tiny_checkpoint: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in SET_FOR_ENGINES}
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tiny_checkpoint, tmp_path / "spool", *SET_FOR_ENGINES],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    [line] = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    found = json.loads(line.removeprefix("FOUND "))
    # Three engines, one process each at least.
    assert len(found["threads"]) >= 3
    assert set(found["threads"]) == {str(threads_per_engine(3))}
    assert found["environment"] == [None, None, None]  # the caller's own is as it was
    # Room for the hidden states of four at a time: the others have waited, and one never fits.
    assert all(size > 44 for size in found["audio"]), found
    assert found["error"][:2] == ["payload_too_large", "thinker"]
    assert "OMNI_JOBS_CAPTURE_BYTES" in found["error"][2]
    # Closing is no engine's death.
    assert "EngineDeadError" not in said
    assert "Traceback" not in said, said


_PIPELINE = """
name: echoed_embeds
version: "1"
model: {family: causal_lm}
stages:
  encode:
    kind: pooling
    component: encoder
    processor: token_embeds
    produces: embeds
    engine: {dtype: bfloat16, max_num_seqs: 4, cpu: {enforce_eager: true, kv_cache_memory_bytes: 8388608}}
  answer:
    kind: ar
    processor: embeds
    inputs: {encode: embeds}
    produces: text
    engine: {dtype: float32, max_num_seqs: 4, cpu: {enforce_eager: true, kv_cache_memory_bytes: 8388608}}
    parameters: {temperature: 0.0, max_tokens: 12}
outputs:
  text: {stage: answer}
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_embeddings_between_two_engines(tiny_causal_lm: Path, tmp_path: Path) -> None:
    """A pooling stage's bfloat16 rows are another stage's prompt, whose answer is that of Transformers."""
    from transformers import AutoModelForCausalLM

    (tmp_path / "echoed_embeds.yaml").write_text(_PIPELINE, encoding="utf-8")
    settings = Settings(device="cpu", spool_dir=tmp_path / "spool", stage_configs=tmp_path)
    requests = [
        {
            "messages": [{"role": "user", "content": "word " * (1 + n * 9)}],
            "stages": {"encode": {"negative_prompt": "fog"} if n % 2 else {}},
            "return_token_ids": True,
        }
        for n in range(6)
    ]
    wrong = {**requests[1], "stages": {"encode": {"negative_prompt": "<|im_end|>"}}}
    with OmniLLM("echoed_embeds", model=tiny_causal_lm, settings=settings) as llm:
        *results, failed = llm.generate([*requests, wrong])
    model = AutoModelForCausalLM.from_pretrained(tiny_causal_lm, dtype=torch.float32).eval()
    for n, result in enumerate(results):
        assert isinstance(result, OmniOutput), result
        outputs = result.stages["encode"].multimodal_outputs
        assert set(outputs) == ({"prompt_embeds", "negative_prompt_embeds"} if n % 2 else {"prompt_embeds"})
        rows = outputs["prompt_embeds"]
        assert rows.dtype == torch.bfloat16
        with torch.inference_mode():
            expected = model.generate(inputs_embeds=rows[None].float(), max_new_tokens=12, do_sample=False)[0].tolist()
        assert result.result["token_ids"]["answer"] == expected
    assert isinstance(failed, InvalidRequest)
    assert (failed.field, failed.stage) == ("stages.encode.negative_prompt", "encode")


def test_what_the_caller_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for name in SET_FOR_ENGINES[1:]:
        monkeypatch.delenv(name, raising=False)
    with _cores_divided(3):
        assert [os.environ[name] for name in SET_FOR_ENGINES] == ["7", "nobind", "0"]
    assert [os.environ.get(name) for name in SET_FOR_ENGINES] == ["7", None, None]


def test_without_engines_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with _cores_divided(0):
        assert "OMP_NUM_THREADS" not in os.environ


def test_every_engine_has_a_thread_and_one_core_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("the cores of this process are not known here")
    for cores, engines, threads in [(1, 3, 1), (2, 3, 1), (8, 3, 2), (16, 1, 15), (4, 0, 3)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert threads_per_engine(engines) == threads
