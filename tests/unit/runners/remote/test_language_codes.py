"""workers.runners.remote.language_codes: a language by its name or its code."""

import pytest

from workers.models.whisper.parameters import LANGUAGES
from workers.runners.remote.language_codes import _CODES, language_code


def test_every_language_of_whisper_has_a_name() -> None:
    assert set(_CODES.values()) == LANGUAGES


@pytest.mark.parametrize(
    ("said", "code"),
    [
        *(("english", "en"), ("English", "en"), ("en", "en"), (" EN ", "en"), ("<|en|>", "en"), ("en-US", "en")),
        *(("pt_BR", "pt"), ("zh-Hans", "zh"), ("haitian creole", "ht"), ("yue", "yue"), ("jw", "jw"), ("lao", "lo")),
        *((None, None), ("", None), ("auto-detected", None), ("unknown", None), ("\x1b[31m", None), ("e" * 99, None)),
    ],
)
def test_a_code_comes_of_names_and_codes(said: str | None, code: str | None) -> None:
    assert language_code(said) == code
