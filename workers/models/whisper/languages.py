"""``languages_of``: the languages that a Whisper checkpoint knows; and which parameters a checkpoint cannot follow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from omni_jobs.errors import ConfigError, InvalidInput, ModelError
from workers.models.whisper.parameters import LANGUAGES, WhisperParameters

ENGLISH = frozenset({"en"})

# CTranslate2 tells them apart in the same way: models of English alone have a token less, and all language tokens too.
_MULTILINGUAL_TOKENS = 51_865


def languages_of(model_dir: Path) -> frozenset[str]:
    """Return the codes of the languages that a checkpoint knows, by its vocabulary.

    Raises ConfigError naming the file, if neither vocabulary.json nor vocabulary.txt is there, or it cannot be read.
    """
    tokens = list(_vocabulary(model_dir))
    if len(tokens) < _MULTILINGUAL_TOKENS:
        return ENGLISH
    return LANGUAGES.intersection(token[2:-2] for token in tokens if token[:2] == "<|" and token[-2:] == "|>")


def check_parameters(
    parameters: WhisperParameters, languages: frozenset[str], error: type[InvalidInput] | type[ModelError]
) -> None:
    """Raise ``error`` naming the first parameter that a checkpoint of these languages cannot follow."""
    language, alone = parameters.language, languages == ENGLISH
    if language is not None and language not in languages:
        if alone:
            raise error(f"this checkpoint knows English alone, not {language!r}", field="language")
        raise error(f"this checkpoint does not know the language {language!r}", field="language")
    if alone and parameters.task != "transcribe":
        raise error("this checkpoint transcribes alone: only a multilingual one translates", field="task")


def _vocabulary(model_dir: Path) -> Iterator[str]:
    for name in ("vocabulary.json", "vocabulary.txt"):
        path = model_dir / name
        try:
            text = path.read_text(encoding="utf-8")
            tokens = json.loads(text) if path.suffix == ".json" else text.split("\n")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot be read: {error}", file=str(path)) from error
        if not isinstance(tokens, list):
            raise ConfigError("not a JSON array", file=str(path))
        return (token for token in tokens if isinstance(token, str) and token)
    raise ConfigError("the checkpoint lacks this file, or vocabulary.txt", file=str(model_dir / "vocabulary.json"))
