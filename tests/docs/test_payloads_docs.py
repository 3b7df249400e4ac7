"""What docs/payloads.md shows must be so: its examples run, its numbers are those of the code."""

import re
from pathlib import Path

import pytest

from omni_jobs.payloads import wire_limits
from omni_jobs.payloads.tensor import ITEM_BYTES
from tests.fuzz.answers import LONGEST_S, PEAK_BYTES, PEAK_PER_BYTE

TEXT = (Path(__file__).parents[2] / "docs" / "payloads.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE):
        exec(compile(block, "docs/payloads.md", "exec"), found)
    assert (found["tokens"], found["hidden_size"]) == (7, 576)
    assert found["voice"] == "Chelsie"


def test_the_dtypes_are_complete() -> None:
    shown = re.search(r"^### Dtypes\n`(.*?)`", TEXT, re.MULTILINE)
    assert shown
    assert set(shown[1].split()) == ITEM_BYTES.keys()


def test_the_limits_are_those_of_the_code() -> None:
    assert f"header's length ({wire_limits.MAX_HEADER_BYTES >> 20} MiB)" in TEXT
    assert f"rank (at most {wire_limits.MAX_RANK})" in TEXT
    assert f"how many (at most {wire_limits.MAX_TENSORS})" in TEXT
    assert f"size ({wire_limits.MAX_VALUES_BYTES >> 10} KiB), depth ({wire_limits.MAX_VALUES_DEPTH})" in TEXT


def test_the_bounds_equal_the_fuzzers() -> None:
    assert f"{PEAK_PER_BYTE} bytes of memory per byte of the header" in TEXT
    assert f"and {PEAK_BYTES >> 10} KiB" in TEXT
    assert LONGEST_S == 2
    assert "less than two seconds of CPU time" in TEXT
