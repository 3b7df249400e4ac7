"""What a pooling runner refuses before it starts an engine, and the arguments with which it would start one."""

import json
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import ConfigError
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.pooling.component import PoolingComponent
from workers.runners.pooling.engine_settings import PoolingEngine
from workers.runners.pooling.pooling_runner import POOLING_ARGUMENTS, PoolingRunner, engine_args
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.vllm_hooks import LONE_TOKENIZER


def args(directory: Path, component: str | None = "encoder", engine: Any = None) -> OmniEngineArgs:
    model = OmniModelConfig(directory, "causal_lm", component)
    return OmniEngineArgs("encode", model, "cpu", None, 1, engine or PoolingEngine())


def made_of(args: OmniEngineArgs, component: PoolingComponent) -> dict[str, Any]:
    assert args.model is not None
    return engine_args(args, args.model, component)


def test_a_component_of_another_runner_and_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kind pooling runs causal_lm's component None; such a stage runs encoder"):
        PoolingRunner(args(tmp_path, None))
    with pytest.raises(ConfigError, match="a stage of the kind pooling needs a model"):
        PoolingRunner(OmniEngineArgs("encode", None, "cpu", None, 1, PoolingEngine()))
    with pytest.raises(ConfigError, match="a device and vLLM's settings are due"):
        PoolingRunner(args(tmp_path, engine=ArEngine()))


def test_rows_keep_the_model_s_dtype_unless_told_otherwise(tmp_path: Path) -> None:
    component = PoolingComponent(model="text_encoder", tokenizer="tokenizer")
    made = made_of(args(tmp_path), component)
    assert made.items() >= POOLING_ARGUMENTS.items()
    assert (made["model"], made["tokenizer"]) == (str(tmp_path / "text_encoder"), str(tmp_path / "tokenizer"))
    assert made["tokenizer_mode"] == LONE_TOKENIZER
    assert made_of(args(tmp_path), PoolingComponent())["tokenizer_mode"] == "auto"
    assert made["hf_overrides"] == {"head_dtype": "model"}
    given = PoolingEngine.model_validate({"hf_overrides": {"head_dtype": "float32", "rope_theta": 1e6}})
    assert made_of(args(tmp_path, engine=given), component)["hf_overrides"] == {
        "head_dtype": "float32",
        "rope_theta": 1e6,
    }


def test_the_encoders_of_media_are_loaded_for_a_component_that_takes_pictures(tmp_path: Path) -> None:
    made = [made_of(args(tmp_path), PoolingComponent(pictures=pictures)) for pictures in (0, 3)]
    assert [each.get("language_model_only") for each in made] == [True, None]
    assert [each.get("limit_mm_per_prompt") for each in made] == [None, {"image": 3, "video": 0}]


def test_an_argument_that_the_component_sets_itself(tmp_path: Path) -> None:
    component = PoolingComponent(engine_args={"hf_overrides": {"architectures": ["Own"]}})
    assert made_of(args(tmp_path), component)["hf_overrides"] == {"head_dtype": "model", "architectures": ["Own"]}
    given = PoolingEngine.model_validate({"cpu": {"hf_overrides": {"rope_theta": 1e6}}})
    with pytest.raises(ConfigError, match="component encoder sets it itself") as caught:
        made_of(args(tmp_path, engine=given), component)
    assert (caught.value.field, caught.value.stage) == ("engine.hf_overrides", "encode")


@pytest.mark.parametrize(
    ("files", "message", "file"),
    [
        ({}, "lacks this file", "config.json"),
        ({"config.json": "{"}, "cannot be read", "config.json"),
        (
            {"config.json": "{}", "modules.json": json.dumps([{"type": "sentence_transformers.models.Dense"}])},
            "projects its rows",
            "modules.json",
        ),
    ],
)
async def test_a_checkpoint_that_cannot_be_run(tmp_path: Path, files: dict[str, str], message: str, file: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    runner = PoolingRunner(args(tmp_path))
    with pytest.raises(ConfigError, match=message) as caught:
        await runner.start()
    assert caught.value.file == str(tmp_path / file)
    assert not runner.healthy
    await runner.close()
