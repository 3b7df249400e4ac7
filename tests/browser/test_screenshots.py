"""scripts/screenshots takes pictures, and says what it cannot take."""

import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests.services import missing
from tests.services.chromium import chromium_program

SCRIPT = Path(__file__).parents[2] / "scripts" / "screenshots"

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def taken(*arguments: str) -> subprocess.CompletedProcess[str]:
    if chromium_program() is None:
        missing("no browser: scripts/browser brings one")
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, timeout=580, check=False)


def test_pictures_are_taken_of_a_stack_that_works(tmp_path: Path) -> None:
    done = taken("--out", str(tmp_path), "--only", "overview-small", "--only", "job")
    assert done.returncode == 0, done.stderr
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["dashboard-job.webp", "dashboard-overview-small.webp"]
    with Image.open(tmp_path / "dashboard-overview-small.webp") as picture:
        assert picture.size == (540, 1110)
        assert len(picture.convert("RGB").getcolors(2**24) or []) > 100
    assert "kB in all" in done.stderr


def test_a_picture_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    done = taken("--out", str(tmp_path), "--only", "nothing")
    assert done.returncode == 2
    assert "invalid choice: 'nothing'" in done.stderr
