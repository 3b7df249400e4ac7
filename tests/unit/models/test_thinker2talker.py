"""thinker2talker: the talker's prompt and feed from the thinker's payload, and what it refuses."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from omni_jobs.errors import ConfigError, ModelError, PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload
from omni_jobs.pipelines.loader import load_pipeline
from workers.models.qwen2_5_omni.processors import Thinker2TalkerProcessor
from workers.runners.ar.parameters import ArParameters
from workers.stages.engine_args import OmniModelConfig
from workers.stages.tensors import from_torch
from workers.stages.types import StageInput

PIPELINE = Path(__file__).parents[3] / "stage_configs" / "qwen2_5_omni.yaml"
TALKER = load_pipeline(PIPELINE).stage("talker")
P, N = 5, 4


def model(checkpoint: Path) -> OmniModelConfig:
    return OmniModelConfig(checkpoint, "qwen2_5_omni", "talker", ("Chelsie", "Ethan"))


@pytest.fixture(scope="module")
def processor(tiny_checkpoint: Path) -> Thinker2TalkerProcessor:
    return Thinker2TalkerProcessor(TALKER, model(tiny_checkpoint))


def thinker_payload(**changes: Any) -> Payload:
    positions = torch.arange(P).expand(3, P).contiguous()
    tensors = {
        "hidden_states": torch.arange((P + N - 1) * 128, dtype=torch.float32).reshape(P + N - 1, 128),
        "mrope_positions": positions,
        "token_ids": torch.arange(N),
    }
    values: dict[str, Any] = {"mrope_delta": 0, "prompt_tokens": P, "voice": "Ethan"}
    for name, value in changes.items():
        kind = tensors if name in tensors else values
        if value is None:
            del kind[name]
        else:
            kind[name] = value
    return Payload(
        manifest=Manifest(kind="hidden_states", job_id="job-1", stage="thinker", attempt=1),
        additional_information=AdditionalInformationPayload(
            tensors={name: from_torch(tensor) for name, tensor in tensors.items()}, values=values
        ),
    )


def stage_input(payload: Payload) -> StageInput:
    return StageInput(
        job_id="job-1",
        request={},
        media=[],
        upstream={"thinker": payload},
        parameters=ArParameters(max_tokens=7),
        seed=3,
        capture=True,
    )


def test_prompt_feed_and_positions(processor: Thinker2TalkerProcessor, tiny_checkpoint: Path) -> None:
    payload = thinker_payload()
    made = processor(stage_input(payload))
    weights = load_file(tiny_checkpoint / "model.safetensors")["thinker.model.embed_tokens.weight"]
    speakers = torch.load(tiny_checkpoint / "spk_dict.pt", weights_only=True)
    config = _talker_config(tiny_checkpoint)
    assert list(made.prompt_token_ids) == [8296] * P + [8292, 8293]
    feed = made.additional_information["feed"]
    rows = torch.arange((P + N - 1) * 128, dtype=torch.float32).reshape(-1, 128)
    assert feed.shape == (P + N + 2, 128)
    assert torch.equal(feed[:P], rows[:P])
    assert torch.equal(feed[P], weights[speakers["Ethan"]["bos_token"]])
    assert torch.equal(feed[P + 1 : -2], rows[P:])
    assert torch.equal(feed[-2], weights[config.tts_text_end_token_id])
    assert torch.equal(feed[-1], weights[config.tts_text_pad_token_id])
    assert made.additional_information["mrope_positions"].tolist() == [list(range(P + 2))] * 3
    assert made.additional_information["mrope_delta"] == 0
    assert (made.seed, made.capture, made.parameters.max_tokens) == (3, True, 7)


def test_media_positions_go_on_after_the_highest(processor: Thinker2TalkerProcessor) -> None:
    positions = torch.tensor([[0, 1, 1, 1, 2], [0, 1, 2, 2, 3], [0, 1, 1, 2, 3]])
    made = processor(stage_input(thinker_payload(mrope_positions=positions, mrope_delta=-1)))
    assert made.additional_information["mrope_positions"][:, -2:].tolist() == [[4, 5]] * 3
    assert made.additional_information["mrope_delta"] == -1


def test_one_generated_token_leaves_the_end_where_the_reply_would_begin(processor: Thinker2TalkerProcessor) -> None:
    payload = thinker_payload(hidden_states=torch.zeros(P, 128), token_ids=torch.zeros(1, dtype=torch.int64))
    assert processor(stage_input(payload)).additional_information["feed"].shape == (P + 3, 128)


def test_the_feed_has_the_rows_dtype(processor: Thinker2TalkerProcessor) -> None:
    payload = thinker_payload(hidden_states=torch.zeros(P + N - 1, 128, dtype=torch.bfloat16))
    assert processor(stage_input(payload)).additional_information["feed"].dtype == torch.bfloat16


def test_without_a_voice_the_first_speaks(processor: Thinker2TalkerProcessor) -> None:
    first = processor(stage_input(thinker_payload(voice=None))).additional_information["feed"][P]
    named = processor(stage_input(thinker_payload(voice="Chelsie"))).additional_information["feed"][P]
    assert torch.equal(first, named)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_states": None}, "tensors.hidden_states"),
        ({"hidden_states": torch.zeros(P + N, 128)}, "tensors.hidden_states.shape"),
        ({"hidden_states": torch.zeros(P + N - 1, 64)}, "tensors.hidden_states.shape"),
        ({"hidden_states": torch.zeros(P + N - 1, 128, dtype=torch.int64)}, "tensors.hidden_states.dtype"),
        ({"mrope_positions": torch.zeros(3, P + 1, dtype=torch.int64)}, "tensors.mrope_positions.shape"),
        ({"mrope_positions": torch.full((3, P), -1)}, "values.mrope_delta"),
        ({"mrope_delta": 7}, "values.mrope_delta"),
        ({"mrope_delta": "0"}, "values.mrope_delta"),
        ({"prompt_tokens": None}, "values.prompt_tokens"),
        ({"prompt_tokens": 0}, "values.prompt_tokens"),
        ({"token_ids": torch.zeros(0, dtype=torch.int64)}, "values.prompt_tokens"),
    ],
)
def test_a_payload_that_does_not_fit_names_the_field(
    processor: Thinker2TalkerProcessor, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(PayloadCorrupt) as caught:
        processor(stage_input(thinker_payload(**changes)))
    assert caught.value.field == field


def test_an_unknown_voice_and_a_payload_without_information(processor: Thinker2TalkerProcessor) -> None:
    with pytest.raises(ModelError, match="no voice 'Nobody'"):
        processor(stage_input(thinker_payload(voice="Nobody")))
    with pytest.raises(PayloadCorrupt):
        processor(stage_input(replace(thinker_payload(), additional_information=None)))


def test_a_checkpoint_without_its_parts_is_a_config_error(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a model"):
        Thinker2TalkerProcessor(TALKER, None)
    with pytest.raises(ConfigError, match="no speaker Zoe"):
        Thinker2TalkerProcessor(TALKER, OmniModelConfig(tiny_checkpoint, "qwen2_5_omni", "talker", ("Zoe",)))
    for missing in ("spk_dict.pt", "model.safetensors", "config.json"):
        copy = tmp_path / missing
        shutil.copytree(tiny_checkpoint, copy)
        (copy / missing).unlink()
        with pytest.raises(ConfigError) as caught:
            Thinker2TalkerProcessor(TALKER, model(copy))
        assert caught.value.file == str(copy / missing)


@pytest.mark.parametrize(
    "speakers",
    [
        ["Chelsie"],
        {"Chelsie": {}},
        {"Chelsie": {"bos_token": None}},
        {"Chelsie": []},
        {0: {"bos_token": 1}, "Ethan": {"bos_token": 1}},
    ],
)
def test_a_broken_table_of_speakers_is_a_config_error(tiny_checkpoint: Path, tmp_path: Path, speakers: Any) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, copy)
    torch.save(speakers, copy / "spk_dict.pt")
    for voices in ((), ("Chelsie",)):
        with pytest.raises(ConfigError) as caught:
            Thinker2TalkerProcessor(TALKER, OmniModelConfig(copy, "qwen2_5_omni", "talker", voices))
        assert caught.value.file == str(copy / "spk_dict.pt")


def _talker_config(checkpoint: Path) -> Any:
    from transformers import Qwen2_5OmniConfig

    return Qwen2_5OmniConfig.from_pretrained(checkpoint).talker_config
