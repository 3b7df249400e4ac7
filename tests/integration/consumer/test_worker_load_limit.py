"""A model that does not load ends its worker with a reason, and nothing of it stays."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.integration.echo_stack import EchoStack
from tests.processes import descendants, named, until_gone

pytestmark = [pytest.mark.timeout(300), pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]

CONFIG = (Path(__file__).parents[3] / "stage_configs" / "qwen2_5_omni.yaml").read_text(encoding="utf-8")


def hanging(checkpoint: Path, tiny: Path) -> Path:
    """The tiny checkpoint whose weights are a pipe that nobody writes to: whoever opens it waits for ever."""
    checkpoint.mkdir()
    for path in tiny.iterdir():
        if path.suffix == ".safetensors":
            os.mkfifo(checkpoint / path.name)
        else:
            (checkpoint / path.name).symlink_to(path)
    return checkpoint


@pytest.mark.parametrize(
    ("stage", "engine"),
    [("code2wav", b"engine_main"), pytest.param("thinker", b"EngineCore", marks=pytest.mark.long)],
)
def test_a_worker_whose_load_hangs_ends_with_a_reason(
    stage: str, engine: bytes, tiny_checkpoint: Path, sqlite_url: str, valkey_url: str, tmp_path: Path
) -> None:
    """The limit's time begins when the engine's process is there, however slow the host was until then."""
    model = hanging(tmp_path / "checkpoint", tiny_checkpoint)
    options = {
        "OMNI_JOBS_LOAD_LIMIT_S": "3",
        "OMNI_JOBS_DEVICE": "cpu",
        "OMNI_JOBS_SPOOL_DIR": str(tmp_path / "spool"),
    }
    stack = EchoStack(tmp_path, sqlite_url, valkey_url, options, pipeline="qwen2_5_omni", config=CONFIG)
    stack.variables["OMNI_JOBS_MODELS"] = json.dumps({"qwen2_5_omni": str(model)})
    try:
        worker = stack.launch(stage, "loads@test", fault="limit")
        stack.until(lambda: named(worker.process.pid, engine) or None, 200)
        below = set(descendants(worker.process.pid))
        worker.process.send_signal(signal.SIGUSR2)
        begun = time.monotonic()
        while (code := worker.process.poll()) is None:
            assert time.monotonic() - begun < 60
            below.update(descendants(worker.process.pid))
            time.sleep(0.05)
        log = worker.log.read_text()
        assert code == 1, log[-3000:]
        assert "this worker stops, to be started anew: the model is not loaded after 3 s" in log
        until_gone(below, 30)
    finally:
        stack.close()
