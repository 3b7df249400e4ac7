"""scripts/browser.py: what cannot be unpacked is told in a line, and the command fails."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    file = Path(__file__).parents[2] / "scripts" / "browser.py"
    spec = importlib.util.spec_from_file_location("browser_script", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "browser_script", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BROWSER", tmp_path / "browser")

    def fetched(package: object, directory: Path) -> Path:
        directory.mkdir()
        (directory / "damaged").write_bytes(b"no archive")
        return directory / "damaged"

    monkeypatch.setattr(module, "fetched", fetched)
    return module


def test_a_damaged_package_is_told_in_a_line(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main() == 1
    told = [line for line in capsys.readouterr().err.splitlines() if "fetching" not in line]
    assert [line.partition(": ")[0] for line in told] == ["browser"] * 2
    assert all("cannot be unpacked" in line for line in told)
    assert not (script.BROWSER / "chromium").exists()
