"""What an AR runner refuses before it starts an engine."""

from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import ConfigError
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.engine_settings import ArEngine
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig


@pytest.mark.parametrize(
    "settings", [{"hf_overrides": {"rope_theta": 1e6}}, {"cpu": {"generation_config": "auto"}}], ids=str
)
def test_an_argument_that_the_component_sets_itself(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = OmniModelConfig(tmp_path, "qwen2_5_omni", "talker")
    engine: Any = ArEngine.model_validate(settings)
    name = next(iter(settings.get("cpu", settings)))
    with pytest.raises(ConfigError, match="component talker sets it itself") as caught:
        ARRunner(OmniEngineArgs("talker", model, "cpu", None, 1, engine, spool_dir=tmp_path / "spool"))
    assert (caught.value.field, caught.value.stage) == (f"engine.{name}", "talker")
