"""The engine settings of a diffusion stage: when a snapshot is due, and what the digest and a job's check have."""

import pytest
from pydantic import ValidationError

from workers.models.glm_image.parameters import DenoiseParameters
from workers.models.qwen_image.parameters import DrawParameters, EditParameters
from workers.models.wan.parameters import AnimateParameters, FilmParameters
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.lora_modules import LoraParameters


@pytest.mark.parametrize(
    ("interval", "seconds", "steps", "is_due"),
    [
        ((10.0, None), 9.9, 1000, False),
        ((10.0, None), 10.0, 1, True),
        ((0.0, None), 1e9, 1000, False),
        ((0.0, 5), 1e9, 4, False),
        ((0.0, 5), 0.0, 5, True),
        ((10.0, 5), 1.0, 5, True),
        ((10.0, 5), 11.0, 1, True),
        ((10.0, 5), 1.0, 1, False),
    ],
)
def test_what_comes_first(interval: tuple[float, int | None], seconds: float, steps: int, is_due: bool) -> None:
    engine = DiffusionEngine(snapshot_every_s=interval[0], snapshot_every_steps=interval[1])
    assert engine.is_snapshot_due(seconds, steps) is is_due


@pytest.mark.parametrize(
    "parameters", [DrawParameters, EditParameters, DenoiseParameters, FilmParameters, AnimateParameters]
)
def test_a_job_takes_an_adapter_that_the_stage_lists(parameters: type[LoraParameters]) -> None:
    stage = DiffusionEngine(lora_modules={"loud": "/loras/loud", "soft": "/loras/soft"})
    assert parameters.model_validate({"lora": "loud"}, context=stage).lora == "loud"
    for listed, known in ((stage, "loud, soft"), (DiffusionEngine(), "none")):
        with pytest.raises(ValidationError, match=f"lists no LoRA module 'other'; it lists {known}") as caught:
            parameters.model_validate({"lora": "other"}, context=listed)
        assert caught.value.errors()[0]["loc"] == ("lora",)


def test_the_digest_has_the_names_of_adapters_and_not_where_they_lie() -> None:
    assert DiffusionEngine(lora_modules={"soft": "/a", "loud": "/b"}).decisive() == {"lora_modules": ["loud", "soft"]}
    assert DiffusionEngine().decisive() == {}


@pytest.mark.parametrize("modules", [{"a/b": "/loras/a"}, {"a": "loras/a"}])
def test_a_name_or_directory_that_cannot_be_is_refused(modules: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        DiffusionEngine(lora_modules=modules)


def test_adapters_stay_on_each_kind_of_host() -> None:
    stage = DiffusionEngine.model_validate({"lora_modules": {"a": "/loras/a"}, "cuda": {"dtype": "bfloat16"}})
    assert stage.on("cuda").lora_modules == stage.on("cpu").lora_modules == {"a": "/loras/a"}
    assert stage.asked_of_model == {"lora_modules"}
