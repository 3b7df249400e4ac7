"""The examples of docs/offline.md run as they stand, each in an interpreter of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = {
    "All results, in order": ["Good morning", "Good night"],
    "As they finish, with a progress bar": ["1 quick", "0 slow", "first: 2 runs, 2 at once", "second: 2 runs"],
    "One stage alone": ["'text': 'Hello'"],
}


def examples() -> dict[str, str]:
    text = (ROOT / "docs" / "offline.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {
        section.partition("\n")[0]: code
        for section in sections
        for code in re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    }


@pytest.mark.parametrize("title", SHOWN)
def test_an_example_runs(title: str) -> None:
    assert examples().keys() == SHOWN.keys()
    done = subprocess.run(
        [sys.executable, "-c", examples()[title]], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    at = -1
    for line in SHOWN[title]:
        at = done.stdout.find(line, at + 1)
        assert at >= 0, (line, done.stdout)
