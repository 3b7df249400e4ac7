"""The numbers of a text, written so that the voice's rules lose none of their signs and digits."""

from __future__ import annotations

import re
import unicodedata

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
CURRENCY_WORDS = {sign: names[1] for sign, names in _CURRENCIES.items() if sign not in "$€£¥₹₩"}
"""The words for the signs of currencies that the voice's rules do not know."""

_SIGNS = "".join(map(re.escape, _CURRENCIES))
_BEHIND = re.compile(rf"(?<![\w{_SIGNS}.,])({_AMOUNT})[ \u00a0\u202f]?([{_SIGNS}])(?![\w{_SIGNS}])")
_BEFORE = re.compile(rf"([₽₺₴₪₫₱₿])[ \u00a0\u202f]?({_AMOUNT})")
_ALONE = re.compile(r"[€£¥₹₩](?![ \u00a0\u202f]?\d)")
_BILLIONS = re.compile(rf"([{_SIGNS}]{_AMOUNT}) ?(?:bn|B)\b")
_FRACTIONS = "¼½¾⅐-⅞"
_SUPERSCRIPT = re.compile(r"(?<=\w)[⁻⁰¹²³⁴-⁹]+")
_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:[\u00a0\u202f\u2009]\d{3})+|(?:\.\d{3}){2,})(?![\d.])")
_DAY = re.compile(r"(?<![\d.])(0?[1-9]|[12]\d|3[01])\.(0?[1-9]|1[0-2])\.(\d{4})(?![\d])")
_MOMENT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(:\d\d)?(?:\.\d+)?(Z?)(?!\w)")
_DOTTED = re.compile(r"(?<![\d.])\d+(?:\.\d+){2,}(?![\d])")
_POWER_OF_TEN = re.compile(r"\b(\d+(?:\.\d+)?)[eE]([+-]?)(\d+)\b")
_NEGATIVE = re.compile(rf"(?<![\w.,)\]}}/:-])-(?=[{_SIGNS}]?\.?\d)")
_LED_BY_ZEROS = re.compile(r"(?<![\w.,:/+-])(?<!\d )0\d++(?![\w.,:/%-]*\w)")
# What stands for the numbers of a text, one after the other: each rule reads what those before it wrote.
_RULES = [
    (re.compile(r"(?<=\d)\s*\*\s*(?=\d)"), " times "),
    (re.compile(r"(?<=\d)\s+-\s+(?=\d)"), " minus "),
    (re.compile(r"""\b(\d{1,2})['′’](\d{1,2})(?:["″”]|''|(?!\w))"""), r"\1 feet \2 inches "),
    (re.compile(r"(?<=\d)′"), " feet "),
    (re.compile(r"(?<=\d)″"), " inches "),
    (re.compile(r"(?<![\d/.,])(\d+) (\d/\d+)(?![\d/])"), r"\1 and \2"),
    (re.compile(r"(?<=\d)€(?=\d)"), " euros "),
]


def with_numbers_as_words(text: str) -> str:
    """Return a text whose amounts, dates, powers, fractions and signs of numbers are written as the voice says them."""
    text = text.replace("−", "-").replace("⁄", "/")
    text = _MOMENT.sub(lambda found: f"{found[1]}, {found[2]}{found[3] or ''}" + (" UTC" if found[4] else ""), text)
    text = _DAY.sub(lambda found: f"{found[3]}-{int(found[2]):02}-{int(found[1]):02}", text)
    text = re.sub(rf"(\d)([{_FRACTIONS}])", r"\1 and \2", text)
    text = re.sub(f"[{_FRACTIONS}]", _fraction, text)
    text = _THOUSANDS.sub(lambda found: found[1] + re.sub(r"\D", "", found[2]), text)
    text = _BEFORE.sub(lambda found: _amount(found[2], found[1]), text)
    text = _BEHIND.sub(lambda found: _amount(found[1], found[2]), text)
    text = _BILLIONS.sub(r"\1 billion", text)
    text = _ALONE.sub(lambda found: f" {_CURRENCIES[found.group()][1]} ", text)
    text = _DOTTED.sub(lambda found: found.group().replace(".", " dot "), text)
    text = _POWER_OF_TEN.sub(_power_of_ten, text)
    for rule, words in _RULES:
        text = rule.sub(words, text)
    text = _SUPERSCRIPT.sub(_power, text)
    text = _NEGATIVE.sub("minus ", re.sub(rf"(?<!\w)([{_SIGNS}])-(?=\d)", r"-\1", text))
    return _LED_BY_ZEROS.sub(lambda found: " ".join(found.group()), text)


def _amount(number: str, sign: str) -> str:
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})*,\d{2}", number):  # 1.234,56 as most of Europe writes it
        number = number.replace(".", "").replace(",", ".")
    one, many = _CURRENCIES[sign]
    return f"{number} {one if number == '1' else many}"


def _fraction(found: re.Match[str]) -> str:
    return unicodedata.name(found.group()).removeprefix("VULGAR FRACTION ").lower()


def _power(found: re.Match[str]) -> str:
    if found.group() in ("²", "³"):
        return found.group()
    return f" to the power of {found.group().translate(_SUPERSCRIPTS)}".replace("-", "minus ")


def _power_of_ten(found: re.Match[str]) -> str:
    return f"{found[1]} times 10 to the power of {'minus ' if found[2] == '-' else ''}{found[3]}"
