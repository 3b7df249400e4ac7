"""Data that only parts of the same models understand goes to no stage of another model, however the file is written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from omni_jobs.pipelines.flows import Dialect
from omni_jobs.pipelines.loader import load_pipeline
from workers.stages.stage import Stage
from workers.stages.types import OmniModelRunnerOutput

CONFIGS = Path(__file__).parents[3] / "stage_configs"


def edited(directory: Path, name: str, component: str, *lines: str) -> Path:
    """Return a copy of a stage config with more lines at the stage of a component."""
    text, at = (CONFIGS / f"{name}.yaml").read_text(), f"    component: {component}\n"
    assert text.count(at) == 1
    path = directory / f"{name}.yaml"
    path.write_text(text.replace(at, at + "".join(f"    {line}\n" for line in lines)))
    return path


@pytest.mark.parametrize(
    ("name", "component", "family", "field", "message"),
    [
        (
            "qwen_image",
            "decode",
            "glm_image",
            "stages.decode.inputs.denoise",
            "component decode takes latents of glm_image, and stage 'denoise' makes those of qwen_image",
        ),
        (
            "glm_image",
            "decode",
            "qwen_image_edit",
            "stages.decode.inputs.denoise",
            "component decode takes latents of qwen_image, and stage 'denoise' makes those of glm_image",
        ),
    ],
)
def test_another_family_s_vae_is_refused(
    tmp_path: Path, name: str, component: str, family: str, field: str, message: str
) -> None:
    path = edited(tmp_path, name, component, f"model: {{family: {family}}}")
    with pytest.raises(ConfigError) as refused:
        load_pipeline(path)
    assert (refused.value.file, refused.value.field, refused.value.message) == (str(path), field, message)
    assert (refused.value.line or 0) > 1
    assert refused.value.more == ()


def test_hidden_states_of_any_language_model_are_no_talker_s(tmp_path: Path) -> None:
    path = edited(tmp_path, "qwen2_5_omni", "thinker")
    path.write_text(path.read_text().replace("    component: thinker\n", "    model: {family: causal_lm}\n"))
    with pytest.raises(ConfigError) as refused:
        load_pipeline(path)
    assert refused.value.field == "stages.talker.inputs.thinker"
    assert "takes hidden_states of qwen2_5_omni, and stage 'thinker' makes others" in refused.value.message


def test_the_vae_of_both_families_of_qwen_image_is_one(tmp_path: Path) -> None:
    pipeline = load_pipeline(edited(tmp_path, "qwen_image", "decode", "model: {family: qwen_image_edit}"))
    assert pipeline.stage("decode").model is not None


def test_one_mistake_in_a_family_s_name_is_named_once(tmp_path: Path) -> None:
    for component in ("denoise", "decode"):
        with pytest.raises(ConfigError) as refused:
            load_pipeline(edited(tmp_path, "qwen_image", component, "model: {family: nobodys}"))
        assert refused.value.field == f"stages.{component}.model.family"
        assert [error.field for error in refused.value.more if "latents" in error.message] == []


def latents(*shape: int) -> Tensor:
    return Tensor.from_numpy(np.zeros(shape, np.float32))


@pytest.mark.parametrize(
    ("shape", "field", "message"),
    [
        ((15, 4, 2), "tensors.latents.shape", "15 channels where 16 are due"),
        ((4096, 64), "tensors.latents.shape", "rank 2, not 3"),
        ((3,), "tensors.latents.shape", "rank 1, not 3"),
    ],
)
@pytest.mark.parametrize("name", ["qwen_image", "glm_image", "qwen_image_edit"])
def test_latents_of_another_shape_are_neither_written_nor_read(
    tmp_path: Path, name: str, shape: tuple[int, ...], field: str, message: str
) -> None:
    pipeline = load_pipeline(CONFIGS / f"{name}.yaml")
    given: dict[str, Any] = {"job_id": "job-1", "request": {}, "media": (), "seed": 1, "has_successors": True}
    for stage in pipeline.stages.values():
        for file in () if stage.family is None else stage.family.checkpoint_files:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text("{}")
    writer, reader = (Stage(pipeline, pipeline.stage(stage), tmp_path) for stage in ("denoise", "decode"))
    payload = Payload(
        Manifest(kind="latents", job_id="job-1", stage="denoise", attempt=1),
        additional_information=AdditionalInformationPayload({"latents": latents(*shape)}, {}),
    )
    with pytest.raises(PayloadCorrupt) as unread:
        reader.input_of(upstream={"denoise": payload}, **given)
    output = OmniModelRunnerOutput(multimodal_outputs={"latents": np.zeros(shape, np.float32)})
    with pytest.raises(ModelError) as unwritten:
        writer.finish(output, writer.input_of(upstream={}, **given))
    for error in (unread.value, unwritten.value):
        assert (error.field, message in error.message) == (field, True), error


def test_a_dialect_is_told_by_its_name() -> None:
    """A refusal names it, and could not say what else differs; whoever reads the data checks their sizes."""
    assert Dialect("qwen_image") == Dialect("qwen_image", {"channels": 16})
    assert Dialect("qwen_image") != Dialect("glm_image")
