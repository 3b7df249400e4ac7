"""The executor that most tests begin with."""

from pathlib import Path

import pytest

from tests.unit.execution.executor_bench import Bench, settled


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """An executor that has found nothing at its start."""
    bench = Bench(tmp_path)
    await settled()
    bench.ledger.asked.clear()
    return bench
