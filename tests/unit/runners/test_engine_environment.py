import os

import pytest

from workers.runners.engine_environment import engine_environment


def test_an_engine_on_the_cpu_keeps_freed_memory_unless_the_operator_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MALLOC_TOP_PAD_", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    found = engine_environment("cpu")
    assert found["MALLOC_TOP_PAD_"] == str(64 << 20)
    assert found["MALLOC_TRIM_THRESHOLD_"] == "131072"
    assert found["PATH"] == os.environ["PATH"]
    assert "MALLOC_TOP_PAD_" not in engine_environment("cuda")
