"""Which texts the voices can say: English, or at least Latin letters and digits."""

import unicodedata

from omni_jobs.errors import InvalidInput, ModelError


def check_speakable(text: str, error: type[InvalidInput] | type[ModelError], field: str) -> None:
    """Raise ``error`` for a text without letters and digits, or with most of its letters in another script."""
    said = [character for character in text if character.isalnum()]
    if not said:
        raise error("there is nothing to say: the text has no letter and no digit", field=field)
    if sum(map(_is_latin, said)) * 2 < len(said):
        raise error("the voice speaks English, and most letters of the text are of another script", field=field)


def _is_latin(character: str) -> bool:
    return character.isascii() or unicodedata.name(character, "").startswith("LATIN ")
