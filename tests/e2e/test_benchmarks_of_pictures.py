"""The benchmark of pictures takes as long as several others, so it has a file of its own, beside which they run."""

from pathlib import Path

import pytest

from tests.e2e.test_benchmarks import figures_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_pictures(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, "pictures")
    targets = {name: figure["target"] for name, figure in figures.items() if figure["target"] is not None}
    assert targets == {
        "beside / alone": 2.0,
        "2 of 64 px, the queue's rate / OmniLLM's": 0.95,
        "2 of 256 px, the queue's rate / OmniLLM's": 0.95,
        "with snapshots / without": 1.03,
    }
