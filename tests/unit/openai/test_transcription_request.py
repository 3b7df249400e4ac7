"""What becomes of a transcription's form: the request of its job, and how it is answered."""

from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.http.form_reader import Form
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.transcriptions.request import TRANSCRIPTION_FORM, WantedTranscription, asked_transcription
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.requests.job_request import AudioPart
from omni_jobs.tenants.caller import ANYONE
from tests.stage_configs import with_remote

PIPELINES = load_pipelines(Path(__file__).parents[3] / "stage_configs")
SOUND = memoryview(b"RIFF")


def body(model: str, **texts: Any) -> dict[str, Any]:
    listed = {name: text if isinstance(text, list) else [text] for name, text in texts.items()}
    return TRANSCRIPTION_FORM.fields_of(Form({"model": [model], **listed}, {"file": [SOUND]}))


def asked(model: str = "transcribe", pipelines: Pipelines = PIPELINES, **texts: Any) -> AskedJobs[WantedTranscription]:
    return asked_transcription(body(model, **texts), pipelines)


@pytest.mark.parametrize("model", ["transcribe", "echo_media", "qwen2_5_omni"])
def test_whatever_makes_text_of_sound_transcribes(model: str) -> None:
    [request] = asked(model).requests
    assert request.messages is not None
    content = request.messages[0].content
    assert isinstance(content, list)
    assert isinstance(content[0], AudioPart)
    assert content[0].input_audio.data is not None
    assert content[0].input_audio.data.data is SOUND  # neither copied nor encoded
    assert request.modalities == ["text"]


@pytest.mark.parametrize(
    ("model", "why"),
    [("speech", "does not make text of audio"), ("chat", "of audio"), ("voice", "answers what it hears")],
)
def test_other_pipelines_do_not(model: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        asked(model)
    assert caught.value.field == "model"


@pytest.mark.parametrize(("model", "stage"), [("transcribe", "listen"), ("remote", "hear")])
def test_parameters_go_to_the_stage_that_makes_the_text(model: str, stage: str, tmp_path: Path) -> None:
    pipelines = with_remote(tmp_path)
    more = {"language": "en", "prompt": "Pharos", "stages": f'{{"{stage}": {{"words": false}}}}'}
    [request] = asked(model, pipelines, response_format="srt", temperature="0", seed="7", **more).requests
    same = {"language": "en", "prompt": "Pharos", "words": False}
    assert request.stages == {stage: {**same, "subtitles": ["srt"]}}
    assert (request.temperature, request.seed, request.logprobs) == (0.0, 7, None)
    words = asked(model, pipelines, response_format="verbose_json", timestamp_granularities=["word"])
    assert words.requests[0].stages == {stage: {"words": True}}
    assert asked(model, pipelines, response_format="verbose_json").requests[0].stages is None


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"language": "en"}, "language"),
        ({"prompt": "Pharos"}, "prompt"),
        ({"response_format": "vtt"}, "response_format"),
        ({"response_format": "verbose_json"}, "response_format"),
    ],
)
def test_a_stage_without_the_parameter_is_told(more: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match="does not take it") as caught:
        asked("qwen2_5_omni", **more)
    assert caught.value.field == field


def test_logprobs_are_asked_of_a_stage_that_tells_them() -> None:
    found = asked("qwen2_5_omni", include=["logprobs"])
    assert (found.requests[0].logprobs, found.answer.with_logprobs) == (True, True)
    with pytest.raises(InvalidRequest, match="does not tell logprobs"):
        asked("transcribe", include=["logprobs"])


def test_an_empty_field_is_no_value() -> None:
    assert asked(language="", prompt="", temperature="").requests[0].stages is None


def test_how_the_text_is_sent_is_no_part_of_what_was_sent() -> None:
    streamed, whole = body("transcribe", stream="true"), body("transcribe")
    requests = [asked_transcription(sent, PIPELINES) for sent in (streamed, whole)]
    bodies = (streamed, whole, body("transcribe", language="de"))
    digests = [requests[0].submissions(sent, 9, ANYONE, "k")[0].digest for sent in bodies]
    assert digests[0] == digests[1] != digests[2]
    assert [each.answer.stream for each in requests] == [True, False]
