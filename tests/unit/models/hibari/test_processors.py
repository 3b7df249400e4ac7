"""The input processors of the stages that speak: say, speak and features2wave."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.payloads import AdditionalInformationPayload, Manifest, Payload, Tensor
from omni_jobs.pipelines.parameters import StageParameters
from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.hibari.hibari_prompts import SPECTRA, TextPrompt
from workers.models.hibari.parameters import AcousticParameters, VocoderParameters
from workers.models.hibari.processors import Features2WaveProcessor, SayProcessor, SpeakProcessor
from workers.stages.types import StageInput

ACOUSTIC = AcousticParameters(speed=1.25)
REQUEST: Mapping[str, Any] = {
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Say it."}]}],
    "audio": {"voice": "heart", "format": "wav"},
}


def payload(kind: str, tensors: Mapping[str, NDArray[Any]], values: Mapping[str, Any]) -> Payload:
    return Payload(
        manifest=Manifest(kind=kind, job_id="job", stage="before", attempt=1),
        additional_information=AdditionalInformationPayload(
            tensors={name: Tensor.from_numpy(array) for name, array in tensors.items()}, values=values
        ),
    )


def stage_input(parameters: StageParameters, before: Payload | None = None, **changes: Any) -> StageInput:
    return StageInput(
        job_id="job",
        request={**REQUEST, **changes},
        media=(),
        upstream={} if before is None else {"before": before},
        parameters=parameters,
        seed=7,
        capture=True,
    )


def stage(processor: str, flow: str | None = None) -> StageConfig:
    inputs = {} if flow is None else {"before": flow}
    return StageConfig(name="stage", kind="hibari", processor=processor, inputs=inputs, produces="waveform")


def test_say_takes_the_request() -> None:
    made = SayProcessor(stage("say"), None)(stage_input(ACOUSTIC))
    assert made == TextPrompt("Say it.", "heart", ACOUSTIC, 7)
    assert SayProcessor(stage("say"), None)(stage_input(ACOUSTIC, audio=None)).voice is None


def utf8(text: bytes) -> Payload:
    return payload("text", {"text": np.frombuffer(text, np.uint8)}, {})


def test_speak_takes_the_text_of_an_earlier_stage() -> None:
    made = SpeakProcessor(stage("speak", "text"), None)(stage_input(ACOUSTIC, utf8("Ein Café.".encode())))
    assert made == TextPrompt("Ein Café.", "heart", ACOUSTIC, 7, is_answer=True)


@pytest.mark.parametrize("before", [utf8(b"caf\xe9"), payload("text", {}, {"text": "here"})])
def test_speak_refuses_a_payload_that_is_no_text(before: Payload) -> None:
    with pytest.raises(PayloadCorrupt) as raised:
        SpeakProcessor(stage("speak", "text"), None)(stage_input(ACOUSTIC, before))
    assert raised.value.field == "tensors.text"


def features(frames: int, sentences: list[int]) -> dict[str, NDArray[Any]]:
    spectra = {name: np.full((601, frames), number, np.float32) for number, name in enumerate(SPECTRA)}
    return {**spectra, "f0": np.ones(frames, np.float32), "sentences": np.asarray(sentences, np.int64)}


def vocoder_prompt(tensors: Mapping[str, NDArray[Any]]) -> Any:
    before = payload("acoustic_features", tensors, {"sampling_rate": 24_000})
    processor = Features2WaveProcessor(stage("features2wave", "acoustic_features"), None)
    return processor(stage_input(VocoderParameters(), before))


def test_features2wave_takes_the_features() -> None:
    made = vocoder_prompt(features(9, [4, 5]))
    assert made.sentences == [4, 5]
    assert {name: array.shape for name, array in made.features.items()} == {
        **dict.fromkeys(SPECTRA, (601, 9)),
        "f0": (9,),
    }
    assert made.features["phi"][0, 0] == SPECTRA.index("phi")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"lh": np.zeros((600, 9), np.float32)}, "tensors.lh.shape"),
        ({"ln": np.zeros((601, 8), np.float32)}, "tensors.ln.shape"),
        ({"f0": np.zeros(9, np.float64)}, "tensors.f0.dtype"),
        ({"sentences": np.asarray([4, 4])}, "tensors.sentences"),
        ({"sentences": np.asarray([10, -1])}, "tensors.sentences"),
        ({"sentences": np.asarray([9, 0])}, "tensors.sentences"),
        ({"sentences": np.zeros(0, np.int64)}, "tensors.sentences"),
    ],
)
def test_features_that_do_not_fit_each_other_are_refused(change: dict[str, NDArray[Any]], field: str) -> None:
    with pytest.raises(PayloadCorrupt) as raised:
        vocoder_prompt({**features(9, [4, 5]), **change})
    assert raised.value.field == field


def test_missing_features_are_refused() -> None:
    tensors = features(3, [3])
    del tensors["phi"]
    with pytest.raises(PayloadCorrupt, match="missing") as raised:
        vocoder_prompt(tensors)
    assert raised.value.field == "tensors.phi"
