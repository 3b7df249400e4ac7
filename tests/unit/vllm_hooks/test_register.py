"""workers.vllm_hooks.register: a rank whose engine is gone ends before it loads anything."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from workers.vllm_hooks import ENGINE_PID

_RANK = "import sys; from workers.vllm_hooks import register; register(); sys.exit(7)"


@pytest.fixture(params=["gone", "not heard of"])
def dead_engine(request: pytest.FixtureRequest) -> Iterator[int]:
    """The id of a process that has ended, and of which its parent has heard or not."""
    engine = subprocess.Popen([sys.executable, "-c", ""])
    if request.param == "gone":
        engine.wait()
    else:
        os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
    yield engine.pid
    engine.wait()


def test_a_rank_whose_engine_died_before_it_registers_ends(dead_engine: int) -> None:
    environment = os.environ | {ENGINE_PID: str(dead_engine)}
    rank = subprocess.run([sys.executable, "-c", _RANK], env=environment, timeout=60, capture_output=True)
    assert (rank.returncode, rank.stderr) == (1, b"")
