"""workers.models.whisper.prompts: which directories and which requests a Whisper stage takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import ConfigError, InvalidRequest
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings
from workers.models.whisper.prompts import WhisperPromptRenderer

CONFIG = {"alignment_heads": [[1, 0]], "suppress_ids": [1], "lang_ids": [50259]}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the files that every Whisper model in CTranslate2's form has."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.bin").touch()
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "vocabulary.json").write_text(json.dumps(["<|endoftext|>", "<|en|>", "<|de|>"]))
    return tmp_path


@pytest.mark.parametrize("name", ["config.json", "model.bin", "tokenizer.json", "vocabulary.json"])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ConfigError) as raised:
        WhisperPromptRenderer(directory)
    assert raised.value.file == str(directory / name)


@pytest.mark.parametrize("config", [{}, {"architectures": ["WhisperForConditionalGeneration"]}, {"bos_token": "<s>"}])
def test_another_models_config_is_refused(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="ct2-transformers-converter") as raised:
        WhisperPromptRenderer(directory)
    assert raised.value.file == str(directory / "config.json")


def request(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "Listen."}, *({"role": "user", "content": c} for c in content)]}


def test_a_request_needs_a_recording(directory: Path) -> None:
    renderer = WhisperPromptRenderer(directory)
    renderer.check(request("first", [{"type": "text", "text": "What is this?"}, {"type": "audio", "media": 0}]))
    for messages in (request("What?"), request([{"type": "text", "text": "What?"}]), request()):
        with pytest.raises(InvalidRequest, match="no recording") as raised:
            renderer.check(messages)
        assert raised.value.field == "messages"


def test_a_recording_has_no_tokens_and_no_longest_length(directory: Path) -> None:
    renderer = WhisperPromptRenderer(directory)
    assert renderer.count_tokens(request([{"type": "audio", "media": 0}]), ()) <= renderer.prompt_limit(())
    assert renderer.longest_audio_s is None


@pytest.mark.parametrize(
    ("stages", "field"),
    [
        ({"listen": {"language": "de"}}, "stages.listen.language"),
        ({"listen": {"task": "translate"}}, "stages.listen.task"),
    ],
)
@pytest.mark.parametrize("default", [False, True])
def test_admission_refuses_a_language_that_the_checkpoint_does_not_know(
    directory: Path, stages: dict[str, dict[str, str]], field: str, default: bool
) -> None:
    settings = Settings(models={"transcribe": directory})
    pipeline = load_pipelines(settings.resolved_stage_configs).named("transcribe")
    given: dict[str, Any] = {"stages": stages}
    if default:
        listen = pipeline.stages["listen"].model_copy(update={"parameters": stages["listen"]})
        pipeline = pipeline.model_copy(update={"stages": {"listen": listen}})
        given = {}
    message = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "UklGRg=="}}]}
    with pytest.raises(InvalidRequest) as raised:
        admit(parse({"model": "transcribe", "messages": [message], **given}, settings), Pipelines([pipeline]), settings)
    assert raised.value.field == field
