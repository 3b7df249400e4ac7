"""``SpokenText``: the words of a text for the voice, and those that it cannot say."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from workers.models.hibari.markdown_words import words_of_markdown


class SpokenText(NamedTuple):
    """What the voice gets of a text.

    text      with words in the place of marks and signs; no letter or sign in it is without a sound
    left_out  the words, as they were written, that the voice cannot say
    """

    text: str
    left_out: Sequence[str]


_AMOUNT = r"\d+(?:[.,]\d+)*"
_CURRENCIES = {
    "$": ("dollar", "dollars"),
    "€": ("euro", "euros"),
    "£": ("pound", "pounds"),
    "¥": ("yen", "yen"),
    "₹": ("rupee", "rupees"),
    "₩": ("won", "won"),
    "₽": ("ruble", "rubles"),
    "₺": ("lira", "liras"),
    "₴": ("hryvnia", "hryvnias"),
    "₪": ("shekel", "shekels"),
    "₫": ("dong", "dong"),
    "₱": ("peso", "pesos"),
    "₿": ("bitcoin", "bitcoins"),
}
_SIGNS = "".join(map(re.escape, _CURRENCIES))
_BEHIND = re.compile(rf"(?<![\w{_SIGNS}.,])({_AMOUNT})[ \u00a0\u202f]?([{_SIGNS}])(?![\w{_SIGNS}])")
_BEFORE = re.compile(rf"([₽₺₴₪₫₱₿])[ \u00a0\u202f]?({_AMOUNT})")
_ALONE = re.compile(r"[€£¥₹₩](?![ \u00a0\u202f]?\d)")
_FRACTION = re.compile(r"(\d)([¼½¾⅐-⅞])")
_SUPERSCRIPT = re.compile(r"(?<=\w)[⁻⁰¹²³⁴-⁹]+")
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:[\u00a0\u202f\u2009]\d{3})+)(?!\d)")
_URL = re.compile(r"\b(?:https?://|www\.)[^\s<>\"“”]+", re.IGNORECASE)
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
} | {sign: names[1] for sign, names in _CURRENCIES.items() if sign not in "$€£¥₹₩"}  # fmt: skip
_GREEK = {chr(code): unicodedata.name(chr(code)).rpartition(" ")[2].lower() for code in range(0x3B1, 0x3CA)}
_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
# These marks are read by the package's own rules, or stand for nothing.
_KNOWN = frozenset("$£€¥₹₩%&+@=<>~°¢§¶±×÷™®©•→←²³µ|*^_\\#`´¨¯¸¦¬")


def spoken_text(text: str) -> SpokenText:
    """Return the words of a text that may be in Markdown, with signs and addresses written out."""
    text = words_of_markdown(unicodedata.normalize("NFC", text))
    text = _URL.sub(lambda found: _spoken_url(found.group()), text)
    text = _with_signs_as_words(text)
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


def _with_signs_as_words(text: str) -> str:
    text = text.replace("−", "-").replace("⁄", "/")
    text = _FRACTION.sub(r"\1 and \2", text)
    text = _THOUSANDS.sub(lambda found: found.group(1) + re.sub(r"\D", "", found.group(2)), text)
    text = _BEFORE.sub(lambda found: _amount(found.group(2), found.group(1)), text)
    text = _BEHIND.sub(lambda found: _amount(found.group(1), found.group(2)), text)
    text = _ALONE.sub(lambda found: f" {_CURRENCIES[found.group()][1]} ", text)
    text = re.sub(r"(?<=\d)\s*\*\s*(?=\d)", " times ", text)
    text = re.sub(r"(?<=\d)\s+-\s+(?=\d)", " minus ", text)
    text = re.sub(r"(?<=\d)′", " feet ", text)
    text = re.sub(r"(?<=\d)″", " inches ", text)
    text = re.sub(r"(?<=\w)#(?!\w)", " sharp", text)
    text = re.sub(r"(?<!\w)#(?=[^\W\d])", "hashtag ", text)
    return _SUPERSCRIPT.sub(_power, text)


def _amount(number: str, sign: str) -> str:
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})*,\d{2}", number):  # 1.234,56 as most of Europe writes it
        number = number.replace(".", "").replace(",", ".")
    one, many = _CURRENCIES[sign]
    return f"{number} {one if number == '1' else many}"


def _power(found: re.Match[str]) -> str:
    if found.group() in "²³":
        return found.group()
    return f" to the power of {found.group().translate(_SUPERSCRIPTS)}"


def _spoken_url(url: str) -> str:
    address = url.rstrip(_ENDS_NO_URL)
    rest = url[len(address) :]
    address = unquote(re.sub(r"^(?:https?://)?(?:www\.)?", "", address, flags=re.IGNORECASE)).rstrip("/")
    return " ".join("".join(_URL_WORDS.get(sign, sign) for sign in address).split()) + rest


def _sound_of(character: str) -> str:
    """Return what stands for a character: itself, words, or nothing where it has no sound."""
    if character in _WORDS:
        return f" {_WORDS[character]} "
    if _is_said(character):
        return character
    if character.lower() in _GREEK:
        return f" {_GREEK[character.lower()]} "
    folded = unicodedata.normalize("NFKC", character)
    return folded if folded != character and all(map(_is_said, folded)) else ""


def _is_said(character: str) -> bool:
    if character.isascii() or character in _KNOWN or character in "¼½¾":
        return True
    category = unicodedata.category(character)
    if category[0] in "PZC":
        return category not in ("Cn", "Co", "Cs")
    return category[0] == "L" and unicodedata.name(character, "").startswith("LATIN ")


def _has_silent(word: str) -> bool:
    """Return whether a character of a word stands for something and has no sound."""
    return any(
        not _sound_of(each).strip() and each not in _WORDS and unicodedata.category(each)[0] in "LNS" for each in word
    )
