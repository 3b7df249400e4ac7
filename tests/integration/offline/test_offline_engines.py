"""``OmniLLM`` with engines: their share of the cores, the budget of their captures, and their end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omni_jobs.stack.cores import threads_per_engine
from workers.offline.omni_llm import _cores_divided

ROOT = Path(__file__).parents[3]

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
        "environment": [os.environ.get(name) for name in ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")],
    }), flush=True)
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_cores_captures_and_a_quiet_end(tiny_checkpoint: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "VLLM_CPU"))}
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tiny_checkpoint, tmp_path / "spool"],
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
    assert found["environment"] == [None, None]  # the caller's own is as it was
    # Room for the hidden states of four at a time: the others have waited, and one never fits.
    assert all(size > 44 for size in found["audio"]), found
    assert found["error"][:2] == ["payload_too_large", "thinker"]
    assert "OMNI_JOBS_CAPTURE_BYTES" in found["error"][2]
    # Closing is no engine's death.
    assert "EngineDeadError" not in said
    assert "Traceback" not in said, said


def test_what_the_caller_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    with _cores_divided(3):
        assert (os.environ["OMP_NUM_THREADS"], os.environ["VLLM_CPU_OMP_THREADS_BIND"]) == ("7", "nobind")
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in os.environ


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
