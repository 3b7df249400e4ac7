"""An engine argument that vLLM does not take: the stage's worker ends and names file, line and field, and `up` does."""

from pathlib import Path

import pytest

from omni_jobs.errors import StackError
from omni_jobs.settings import Settings
from omni_jobs.stack.child import ChildState
from omni_jobs.stack.embedded import EmbeddedStack

pytest.importorskip("vllm")

pytestmark = pytest.mark.timeout(600)

CONFIG = """\
name: omni
version: "1"
model:
  family: qwen2_5_omni
stages:
  thinker:
    kind: ar
    component: thinker
    processor: chat
    produces: text
    engine:
      enforce_eager: true
      smell: 1
      cpu:
        enforce_eager: perhaps
outputs:
  text: {stage: thinker}
"""


def test_a_worker_names_file_line_and_field_and_is_not_started_again(tiny_checkpoint: Path, tmp_path: Path) -> None:
    configs = tmp_path / "stage_configs"
    configs.mkdir()
    path = configs / "omni.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    settings = Settings(
        data_dir=tmp_path / "data", stage_configs=configs, models={"omni": tiny_checkpoint}, device="cpu"
    )
    stack = EmbeddedStack(settings, pipelines=["omni"])
    with pytest.raises(StackError, match=r"worker omni\.thinker ended with exit status 1 while starting") as raised:
        stack.start()
    start = "this worker cannot start: "
    said = [line.partition(start)[2] for line in str(raised.value).splitlines() if start in line]
    assert [each.partition(": vLLM")[0] for each in said] == [
        f"{path}:15: stages.thinker.engine.cpu.enforce_eager",
        f"{path}:13: stages.thinker.engine.smell",
    ]
    (worker,) = [each for each in stack.children() if each.name == "worker omni.thinker"]
    assert (worker.state, worker.restarts) == (ChildState.FAILED, 0)
