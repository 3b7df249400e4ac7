"""The builders of tiny checkpoints, as processes of their own."""

from pathlib import Path

import pytest

from omni_jobs.errors import ConfigError
from omni_jobs.stack.tiny_checkpoint import run_builder


def test_a_package_that_a_builder_lacks_is_named_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "builder_in_vain.py").write_text("import a_package_that_is_not_there.at_all\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError) as raised:
        run_builder("builder_in_vain", tmp_path / "made")
    assert str(raised.value) == (
        "builder_in_vain needs a_package_that_is_not_there, which is not installed here: run scripts/setup"
    )
