"""``word_error_rate``: how much of what was said was heard wrong, in words."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

__all__ = ["word_error_rate", "words_of"]


def words_of(text: str) -> list[str]:
    """Return the words of an English text, so that two ways to write the same speech give the same words.

    They are those of Whisper's own normalizer, by which its error rates are published, as Transformers has it: small
    letters, no punctuation, no fillers such as "um", nothing in brackets, contractions in full ("don't" is "do not",
    and each "'s" is "is"), titles in full ("Mr." is "mister"), numbers, money and percentages in digits ("twenty-five
    percent" is "25%"). British spellings stay as they are. What it misses is added: an apostrophe may be a curved one,
    dots in a row are no word, and "cannot" is "can not", as "can't" is.

    Numbers that follow each other become one, even across a full stop: "past seven. One came" is "past 71 came".
    """
    text = _normalizer()(text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    words = text.replace("cannot", "can not").split()
    return [word for word in words if any(character.isalnum() for character in word)]


def word_error_rate(said: str, heard: str) -> float:
    """Return the words to be changed, left out and put in to make ``said`` of ``heard``, over the words of ``said``.

    Their number is the least one, Levenshtein's distance, over ``words_of`` both. The rate is 0 where all was heard
    right, 1 where nothing was heard, and above 1 where more was heard than said. Raises ValueError where ``said`` has
    no words, because no rate says how much of nothing was heard wrong.
    """
    wanted, got = words_of(said), words_of(heard)
    if not wanted:
        raise ValueError("nothing was said")
    # errors[n]: the distance between the words of ``wanted`` so far and the first n of ``got``.
    errors = list(range(len(got) + 1))
    for row, word in enumerate(wanted, 1):
        before, errors[0] = errors[0], row
        for column, other in enumerate(got, 1):
            changed = before + (word != other)
            before = errors[column]
            errors[column] = min(changed, errors[column] + 1, errors[column - 1] + 1)
    return errors[-1] / len(wanted)


@cache
def _normalizer() -> EnglishTextNormalizer:
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer  # takes seconds

    return EnglishTextNormalizer({})
