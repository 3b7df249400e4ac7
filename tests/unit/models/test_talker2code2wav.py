import json
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen2_5_omni.processors import Talker2Code2WavProcessor
from workers.stages.engine_args import OmniModelConfig
from workers.stages.tensors import from_torch
from workers.stages.types import StageInput

STAGE = StageConfig(
    name="code2wav",
    kind="diffusion",
    component="code2wav",
    processor="talker2code2wav",
    inputs={"talker": "codes"},
    produces="waveform",
)
TALKER_CONFIG = {"tts_codec_pad_token_id": 8292, "tts_codec_end_token_id": 8294}


def _processor(directory: Path, voices: tuple[str, ...] = ("Chelsie", "Ethan")) -> Talker2Code2WavProcessor:
    (directory / "config.json").write_text(json.dumps({"talker_config": TALKER_CONFIG}))
    return Talker2Code2WavProcessor(STAGE, OmniModelConfig(directory, "qwen2_5_omni", "code2wav", voices))


def _stage_input(codes: torch.Tensor | None, *, parameters: StageParameters | None = None, **values: Any) -> StageInput:
    tensors = {} if codes is None else {"codes": from_torch(codes)}
    payload = Payload(
        Manifest(kind="codes", job_id="job-1", stage="talker", attempt=1),
        additional_information=AdditionalInformationPayload(tensors=tensors, values=values),
    )
    return StageInput(
        job_id="job-1",
        request={},
        media=(),
        upstream={"talker": payload},
        parameters=parameters or OdeParameters(steps=5),
        seed=11,
        capture=False,
    )


@pytest.mark.parametrize(
    ("codes", "spoken"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 3, 8294], [1, 2, 3]),
        ([1, 2, 8292], [1, 2]),
        ([1, 8292, 7, 8294], [1]),
        ([8293, 8296], [8293, 8296]),
    ],
)
def test_codes_are_cut_at_the_first_end(tmp_path: Path, codes: list[int], spoken: list[int]) -> None:
    prompt = _processor(tmp_path)(_stage_input(torch.tensor(codes), voice="Ethan"))
    found = prompt.tensors["codes"]
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == spoken
    assert found.dtype == torch.int64
    assert (prompt.values, prompt.seed, prompt.parameters) == ({"voice": "Ethan"}, 11, OdeParameters(steps=5))


def test_without_a_voice_the_first_speaks(tmp_path: Path) -> None:
    assert _processor(tmp_path)(_stage_input(torch.tensor([1]))).values == {"voice": "Chelsie"}


@pytest.mark.parametrize("codes", [[], [8294], [8292, 5]])
def test_a_silent_talker_is_an_error(tmp_path: Path, codes: list[int]) -> None:
    with pytest.raises(ModelError, match="before it said anything") as caught:
        _processor(tmp_path)(_stage_input(torch.tensor(codes, dtype=torch.int64)))
    assert caught.value.field == "codes"


@pytest.mark.parametrize(
    ("stage_input", "field"),
    [
        (_stage_input(None, voice="Ethan"), "tensors.codes"),
        (_stage_input(torch.tensor([1.0])), "tensors.codes.dtype"),
        (_stage_input(torch.tensor([1], dtype=torch.int32)), "tensors.codes.dtype"),
        (_stage_input(torch.tensor([[1]])), "tensors.codes.shape"),
        (_stage_input(torch.tensor([1]), voice=3), "values.voice"),
    ],
)
def test_a_wrong_payload_names_the_field(tmp_path: Path, stage_input: StageInput, field: str) -> None:
    with pytest.raises(PayloadCorrupt) as caught:
        _processor(tmp_path)(stage_input)
    assert caught.value.field == field


def test_a_payload_without_information_is_refused(tmp_path: Path) -> None:
    stage_input = _stage_input(None)
    bare = Payload(stage_input.upstream["talker"].manifest)
    with pytest.raises(PayloadCorrupt, match="additional_information"):
        _processor(tmp_path)(
            StageInput(stage_input.job_id, {}, (), {"talker": bare}, stage_input.parameters, seed=0, capture=False)
        )


def test_it_needs_a_model_that_names_the_ends(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        Talker2Code2WavProcessor(STAGE, None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="talker_config") as caught:
        Talker2Code2WavProcessor(STAGE, OmniModelConfig(tmp_path, "qwen2_5_omni", "code2wav"))
    assert caught.value.file == str(tmp_path / "config.json")
