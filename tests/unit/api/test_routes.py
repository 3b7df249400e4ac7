"""The routes: each file is a leaf, which no other file of the routes imports."""

from pathlib import Path

import pytest

from omni_jobs.api import routes

FILES = sorted(Path(path) for root in routes.__path__ for path in Path(root).glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_route_imports_another(file: Path) -> None:
    assert "omni_jobs.api.routes" not in file.read_text(encoding="utf-8").replace('files("omni_jobs.api.routes")', "")
