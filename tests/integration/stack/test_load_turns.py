"""Workers of one GPU load one after another under ``up``, and those of others beside them. No GPU is used."""

import fcntl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from omni_jobs.settings import Settings, packaged_directory
from omni_jobs.stack.child import ChildState
from omni_jobs.stack.embedded import EmbeddedStack

pytestmark = pytest.mark.timeout(300)

START_S = 120.0


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_worker_waits_for_those_of_its_card_alone(tmp_path: Path) -> None:
    config = yaml.safe_load((packaged_directory("stage_configs") / "echo.yaml").read_text(encoding="utf-8"))
    config["stages"]["first"]["device"] = "cuda:0"
    config["stages"]["second"]["device"] = "cuda:1"
    (tmp_path / "echo.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    settings = Settings(data_dir=tmp_path / "data", stage_configs=tmp_path, device="auto", load_limit_s=START_S)
    stack = EmbeddedStack(settings, pipelines=["echo"])
    locks = tmp_path / "data" / "load-locks"
    locks.parent.mkdir(mode=0o700)
    locks.mkdir(mode=0o700)

    def states() -> dict[str, ChildState]:
        return {view.name: view.state for view in stack.children() if view.name.startswith("worker")}

    with (locks / "0.lock").open("ab") as other:  # held as a worker holds it that loads there
        fcntl.flock(other, fcntl.LOCK_EX)
        started = threading.Thread(target=stack.start)
        started.start()
        try:
            until(lambda: states().get("worker echo.second") is ChildState.READY)
            log = stack.log_dir / "worker-echo.first.log"
            until(lambda: "another worker loads its model on GPU 0" in log.read_text(encoding="utf-8"))
            assert states()["worker echo.first"] is ChildState.STARTING
            fcntl.flock(other, fcntl.LOCK_UN)
            until(lambda: states()["worker echo.first"] is ChildState.READY)
            started.join(START_S)
            assert not started.is_alive()
        finally:
            stack.stop()
            started.join(START_S)
