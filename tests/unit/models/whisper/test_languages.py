"""workers.models.whisper.languages: what a checkpoint's vocabulary says of the languages that it knows."""

import json
from pathlib import Path

import pytest

from omni_jobs.errors import ConfigError, InvalidRequest
from workers.models.whisper.languages import ENGLISH, check_parameters, languages_of
from workers.models.whisper.parameters import WhisperParameters

GERMAN = frozenset({"en", "de"})


def vocabulary(size: int, *codes: str) -> list[str]:
    tokens = [f"<|{code}|>" for code in codes] + ["<|endoftext|>", "<|nospeech|>"]
    return [*(f"word{number}" for number in range(size - len(tokens))), *tokens]


@pytest.mark.parametrize("name", ["vocabulary.json", "vocabulary.txt"])
def test_the_size_of_the_vocabulary_tells_a_model_of_english_alone(tmp_path: Path, name: str) -> None:
    def write(tokens: list[str]) -> None:
        text = json.dumps(tokens) if name.endswith("json") else "\n".join(tokens) + "\n"
        (tmp_path / name).write_text(text, encoding="utf-8")

    write(vocabulary(51_864, "en", "de", "fr"))
    assert languages_of(tmp_path) == ENGLISH
    write(vocabulary(51_865, "en", "de", "haw"))
    assert languages_of(tmp_path) == {"en", "de", "haw"}


@pytest.mark.parametrize("content", ["{}", "[", '"text"'])
def test_a_vocabulary_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "vocabulary.json").write_text(content)
    with pytest.raises(ConfigError) as raised:
        languages_of(tmp_path)
    assert raised.value.file == str(tmp_path / "vocabulary.json")


@pytest.mark.parametrize(
    ("parameters", "languages", "field"),
    [
        ({"language": "de"}, ENGLISH, "language"),
        ({"language": "en"}, ENGLISH, None),
        ({}, ENGLISH, None),
        ({"task": "translate"}, ENGLISH, "task"),
        ({"language": "de", "task": "translate"}, GERMAN, None),
        ({"language": "yue"}, GERMAN, "language"),  # older multilingual checkpoints lack it
    ],
)
def test_what_a_checkpoint_cannot_follow_is_named(
    parameters: dict[str, str], languages: frozenset[str], field: str | None
) -> None:
    given = WhisperParameters(**parameters)  # type: ignore[arg-type]
    if field is None:
        check_parameters(given, languages, InvalidRequest)
        return
    with pytest.raises(InvalidRequest, match=parameters.get("language", "translates")) as refused:
        check_parameters(given, languages, InvalidRequest)
    assert refused.value.field == field
