"""``SpokenText``: the words of a text for the voice, and those that it cannot say."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from workers.models.hibari.formula_words import words_of_formulas
from workers.models.hibari.markdown_words import words_of_markdown
from workers.models.hibari.number_words import CURRENCY_WORDS, with_numbers_as_words


class SpokenText(NamedTuple):
    """What the voice gets of a text.

    text      with words in the place of marks and signs; no letter or sign in it is without a sound
    left_out  the words, as they were written, that the voice cannot say
    """

    text: str
    left_out: Sequence[str]


_URL = re.compile(r"\b(?:(?:https?|s?ftp|ssh|file|wss?)://|www\.)[^\s<>\"“”]+", re.IGNORECASE)
_MAIL = re.compile(r"(?:\bmailto:)?\b[\w.+%-]{1,64}@[\w-]+(?:\.[\w-]+)+", re.IGNORECASE)
# Terminals' escapes, and characters that show nothing: other controls than white space, joiners, marks of direction.
_UNSEEN = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|(?<=\w)\u200d(?=\w)"
    r"|[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"
    r"|[\u00ad\u061c\u180e\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
_OF_CJK = str.maketrans("。、「」『』【】《》〈〉・〜", '.,"""""""""" -')
_URL_WORDS = {
    "/": " slash ", ".": " dot ", "?": " question mark ", "=": " equals ", "&": " and ", "#": " hash ",
    "-": " dash ", "_": " underscore ", ":": " colon ", "%": " percent ", "+": " plus ", "~": " tilde ", "@": " at ",
}  # fmt: skip
_ENDS_NO_URL = ".,;:!?)]\"'"

_WORDS = {
    "≤": "less than or equal to", "≥": "greater than or equal to", "≠": "is not equal to", "≈": "is about",
    "∞": "infinity", "√": "the square root of", "‰": "per mille", "⇒": "implies", "∈": "in", "∑": "the sum of",
    "∂": "partial", "∫": "the integral of", "∆": "delta", "℃": "degrees Celsius", "℉": "degrees Fahrenheit",
    "℠": "", "☑": "", "✓": "", "✔": "", "●": "", "■": "", "▪": "", "◦": "",
} | CURRENCY_WORDS  # fmt: skip
_GREEK = {chr(code): unicodedata.name(chr(code)).rpartition(" ")[2].lower() for code in range(0x3B1, 0x3CA)}
# These marks are read by the package's own rules, or stand for nothing.
_KNOWN = frozenset("$£€¥₹₩%&+@=<>~°¢§¶±×÷™®©•→←²³µ|*^_\\#`´¨¯¸¦¬")


def spoken_text(text: str) -> SpokenText:
    """Return the words of a text that may be in Markdown, with signs and addresses written out."""
    text = _UNSEEN.sub("", unicodedata.normalize("NFC", text))
    text = re.sub(r"(?<=\d)\*(?=\d)", " × ", words_of_formulas(text))  # no emphasis of Markdown
    text = words_of_markdown(text).translate(_OF_CJK)
    text = "".join(map(_narrow, text))
    text = _URL.sub(lambda found: _spoken_url(found.group()), text)
    text = _MAIL.sub(lambda found: _spoken_url(found.group().removeprefix("mailto:")), text)
    text = re.sub(r"(?<=\w)#(?!\w)", " sharp", with_numbers_as_words(text))
    text = re.sub(r"(?<!\w)#(?=[^\W\d])", "hashtag ", text)
    left_out: list[str] = []
    lines = []
    for line in text.split("\n"):
        words = []
        for word in re.split(r"(\s+)", line):
            said = "".join(map(_sound_of, word))
            if _has_silent(word):
                left_out.append(word)
            words.append(said)
        lines.append("".join(words))
    # The package takes what stands in brackets behind a link's words for phonemes.
    return SpokenText("\n".join(lines).replace("](", "] ("), left_out)


def _spoken_url(url: str) -> str:
    address = url.rstrip(_ENDS_NO_URL)
    rest = url[len(address) :]
    address = unquote(re.sub(r"^(?:[a-z]+://)?(?:www\.)?", "", address, flags=re.IGNORECASE)).rstrip("/")
    return " ".join("".join(_URL_WORDS.get(sign, sign) for sign in address).split()) + rest


def _narrow(character: str) -> str:
    """Return a sign of the width of an ideogram as the usual one: the package knows no other."""
    return chr(ord(character) - 0xFEE0) if "\uff01" <= character <= "\uff5e" else character


def _sound_of(character: str) -> str:
    """Return what stands for a character: itself, words, or nothing where it has no sound."""
    if character in _WORDS:
        return f" {_WORDS[character]} "
    if _is_said(character):
        return character
    if character.lower() in _GREEK:
        return f" {_GREEK[character.lower()]} "
    for form in ("NFKC", "NFKD"):
        folded = "".join(each for each in unicodedata.normalize(form, character) if not unicodedata.combining(each))
        if folded and folded != character and all(map(_is_said, folded)):
            return folded
    return ""


def _is_said(character: str) -> bool:
    if character.isascii() or character in _KNOWN or character in "¼½¾":
        return True
    category = unicodedata.category(character)
    if category[0] in "PZC":
        return category not in ("Cn", "Co", "Cs")
    # Of letters of other languages the package knows those with usual accents.
    return category[0] == "L" and character < "\u0180" and character != "ſ"


def _has_silent(word: str) -> bool:
    """Return whether a character of a word stands for something and has no sound."""
    return any(
        not _sound_of(each).strip() and each not in _WORDS and unicodedata.category(each)[0] in "LNS" for each in word
    )
