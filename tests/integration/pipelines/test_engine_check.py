"""``pipelines check`` and vLLM's arguments: by vLLM's own types where it is installed, and a line where it is not."""

import dataclasses
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omni_jobs.cli import app
from omni_jobs.pipelines.declarations import runner
from omni_jobs.stack import engine_check
from tests.broken_graphs import GOOD

TUNED = """\
    produces: codes
    engine:
      dtype: float32
      enforce_eager: true
      quantization: null
      cpu:
        kv_cache_dtype: auto
"""

WRONG = """\
    produces: codes
    engine:
      max_seqs: 8
      trust_remote_code: true
      tool_parser: hermas
      compilation_config:
        pass_config: {fuse: 1}
      cpu:
        kv_cache_dtype: fp9
        enforce_eager: false
"""


def check(*files: Path) -> Result:
    return CliRunner().invoke(app, ["pipelines", "check", *map(str, files)])


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    path = tmp_path / "tuned.yaml"
    path.write_text(GOOD.replace("    produces: codes\n", TUNED), encoding="utf-8")
    return path


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.yaml"
    path.write_text(
        GOOD.replace("    produces: codes\n", WRONG)
        .replace("name: omni", "name: wrong")
        .replace("kind: diffusion", "kind: diff"),
        encoding="utf-8",
    )
    return path


def test_every_mistake_has_file_line_and_field(tuned: Path, wrong: Path) -> None:
    """Those that vLLM finds stand beside those of the graph, and both files are checked in one process of vLLM's."""
    pytest.importorskip("vllm")
    checked = check(wrong, tuned)
    assert checked.exit_code == 1
    assert checked.stdout.startswith(f"{tuned}: ok: omni 1, ")
    said = [line.removeprefix(f"{wrong}:") for line in checked.stderr.splitlines()]
    assert [line.partition(" ")[0] + line.partition(" ")[2].partition(" ")[0] for line in said] == [
        "18:stages.talker.engine.max_seqs:",
        "19:stages.talker.engine.trust_remote_code:",
        "20:stages.talker.engine.tool_parser:",
        "22:stages.talker.engine.compilation_config.pass_config.fuse:",
        "24:stages.talker.engine.cpu.kv_cache_dtype:",
        "27:stages.code2wav.kind:",
    ]
    assert said[0].endswith("has no such argument; did you mean max_num_seqs?")
    assert "vLLM has no parser of tools 'hermas'; did you mean" in said[2]
    assert "refuses the value: Unexpected keyword" in said[3]
    assert "refuses the value: Input should be 'auto', 'float16'" in said[4]


def test_without_vllm_a_line_says_that_nobody_looked(
    tuned: Path, wrong: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    plain = tmp_path / "plain.yaml"
    plain.write_text(GOOD.replace("name: omni", "name: plain"), encoding="utf-8")
    checked = check(tuned, plain)
    assert (checked.exit_code, checked.stdout.count(": ok: ")) == (0, 2)
    (line,) = checked.stderr.splitlines()
    assert line.startswith(
        f"{tuned}: stages.talker.engine: not checked by the engine's own types: "
        "the package vllm is not installed here: pip"
    )
    refused = check(wrong)
    assert refused.exit_code == 1
    assert "stages.talker.engine.trust_remote_code: it would run code" in refused.stderr
    assert "max_seqs" not in refused.stderr


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("raise SystemExit('no libcuda')", "ended with exit status 1: no libcuda"),
        ("print('hello')", "ended with exit status 0: it said nothing"),
        ("print('[]')", "ended with exit status 0: it said nothing"),
        ("import os; os.kill(os.getpid(), 9)", "ended with exit status -9: it said nothing"),
        ("import threading; threading.Event().wait()", "did not answer within 2 s"),
    ],
)
def test_an_engine_that_does_not_answer_is_no_mistake_of_the_file(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, says: str
) -> None:
    (tmp_path / "broken_check.py").write_text(module, encoding="utf-8")
    broken = dataclasses.replace(runner("ar"), engine_check="broken_check", packages={})
    monkeypatch.setattr(engine_check, "runner", lambda kind: broken if kind == "ar" else runner(kind))
    monkeypatch.setattr(engine_check, "CHECK_LIMIT_S", 2.0)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checked = check(tuned)
    assert checked.exit_code == 0
    assert (
        checked.stderr == f"{tuned}: stages.talker.engine: not checked by the engine's own types: broken_check {says}\n"
    )
