"""workers.models.hibari.spoken_text: what the voice gets of a text, and what it cannot say."""

import time

import pytest

from workers.models.hibari.spoken_text import spoken_text

SAID = {
    "Read [our docs](/docs/api/) first.": "Read our docs first.",
    "[the pricing page](/pricing/)": "the pricing page",
    "[a guide][1]\n\n[1]: /guide/": "a guide",
    "![a cat](/cat.png)": "a cat",
    "**Bold**, _it_ and `code`, ~~no~~": "Bold, it and code, no",
    "# Title\n\n- one\n- two\n\n1. x\n2. y": "Title\none\ntwo\n1. x\n2. y",
    "| a | b |\n|---|---|\n| 1 | 2 |": "a, b\n1, 2",
    "x &amp; y": "x & y",
    "See https://example.com/docs.": "See example dot com slash docs.",
    "1986. A great year": "1986. A great year",
    "if x <y and z> w": "if x <y and z> w",
    "<b>hi</b> you": "hi you",
    "It costs 5 € today.": "It costs 5 euros today.",
    "5€, 1 £, 5 $, $5.00, €5.50": "5 euros, 1 pound, 5 dollars, $5.00, €5.50",
    "1.234,56 €": "1234.56 euros",
    "5 * 3 and 5 − 3 at −5 °C": "5 times 3 and 5 minus 3 at minus 5 °C",
    "1½ and 10⁶": "1 and one half and 10 to the power of 6",
    "The cafe\u0301 is ﬁne": "The café is fine",
    "Dr. Smith paid $5.00 at 9:30am on Jan. 5th, 2019! Did he?": (
        "Dr. Smith paid $5.00 at 9:30am on Jan. 5th, 2019! Did he?"
    ),
    'She said: "Yes, of course..." and left.': 'She said: "Yes, of course..." and left.',
}


@pytest.mark.parametrize("text", SAID)
def test_a_text_is_said_as_it_is_read(text: str) -> None:
    assert spoken_text(text) == (SAID[text], [])


@pytest.mark.parametrize(
    ("text", "said", "left_out"),
    [
        ("The word 你好 means hello.", "The word means hello.", ["你好"]),
        ("Привет and مرحبا and नमस्ते", "and and", ["Привет", "مرحبا", "नमस्ते"]),
        ("Well done 🎉🎉", "Well done", ["🎉🎉"]),
    ],
)
def test_what_has_no_sound_is_named(text: str, said: str, left_out: list[str]) -> None:
    found = spoken_text(text)
    assert " ".join(found.text.split()) == said
    assert list(found.left_out) == left_out


def test_no_text_sets_the_voice_s_phonemes() -> None:
    assert "](" not in spoken_text("[y](/a b/) `[x](/z/)`").text


FORMULAS = {
    "Euler: $e^{i\\pi}+1=0$ holds.": "Euler: e to the power of i pi plus 1 equals 0 holds.",
    "So $$\\frac{a}{b} \\leq \\sqrt{2}$$ here": "So a over b less than or equal to the square root of 2 here",
    "With \\(x_1^2\\) and \\[ \\sum_{i=0}^n i \\].": "With x sub 1 squared and the sum from i equals 0 to n of i.",
    "It costs $5 and $6, or $HOME and $PATH.": "It costs $5 and $6, or $HOME and $PATH.",
    "the set $S$ of $n$ things": "the set S of n things",
}
NUMBERS = {
    "It is -5 or −3.5 degrees, and 5-10 people.": "It is minus 5 or minus 3.5 degrees, and 5-10 people.",
    "-$5 and $-5": "minus $5 and minus $5",
    "2*3*4": "2 × 3 × 4",
    "6.02×10²³ and 10² and 1e-5": ("6.02×10 to the power of 23 and 10² and 1 times 10 to the power of minus 5"),
    "⅓ of 3⅛, ½ and 1 1/2": "one third of 3 and one eighth, one half and 1 and 1/2",
    "on 06.05.2024 at 2024-05-06T10:20:30Z": "on 2024-05-06 at 2024-05-06, 10:20:30 UTC",
    "call 00493012 or 007": "call 0 0 4 9 3 0 1 2 or 0 0 7",
    "192.168.0.1 in v1.2.3": "192 dot 168 dot 0 dot 1 in v1 dot 2 dot 3",
    "1.000.000 is 1 000 000": "1000000 is 1 000 000",
    "$5bn": "$5 billion",
}
OTHERS = {
    "Mail john.doe+x@example.co.uk now.": "Mail john dot doe plus x at example dot co dot uk now.",
    "See ftp://host.example/a": "See host dot example slash a",
    "- [ ] buy milk\n- [x] sleep": "buy milk\nsleep",
    "The sky is blue.[^1]\n\n[^1]: Rayleigh.": "The sky is blue.\nFootnote 1: Rayleigh.",
    "zero\u200bwidth soft\u00adhyphen join\u200der \ufeffmark\u202e": "zerowidth softhyphen joiner mark",
    "wor\x7fld\x01 \x1b[31mred\x1b[0m": "world red",
    "ＡＢＣ！ １，２": "ABC! 1,2",
    "Nẵng and ſtraße and ṣ": "Nang and straße and s",
    "<blockquote>said</blockquote>": "said",
}


@pytest.mark.parametrize("text", [*FORMULAS, *NUMBERS, *OTHERS])
def test_signs_and_digits_are_not_lost(text: str) -> None:
    said = spoken_text(text)
    assert " ".join(said.text.split(" ")).strip() == (FORMULAS | NUMBERS | OTHERS)[text]
    assert said.left_out == []


@pytest.mark.parametrize(
    "piece",
    [
        "<!-- ",
        "$=",
        "\\[",
        "\\( a",
        "- [ ] ",
        "\n",
        "0",
        "1.",
        "a@",
        "\\frac{",
        "[^a",
        "x²",
        "👨\u200d",
        "<a ",
        "$$ a ",
    ],
)
def test_the_time_for_a_long_text_grows_with_its_length(piece: str) -> None:
    """The longest text that is looked at takes a second or two; with the second power of its length it would hang."""
    text = (piece * (1 << 18))[: 1 << 18]
    began = time.process_time()
    spoken_text(text)
    spoken_text(text + "x")
    assert time.process_time() - began < 30


@pytest.mark.parametrize("deep", ["\n".join(f"{'  ' * n}- level {n}" for n in range(30)), f"{'>' * 30} level 29"])
def test_what_is_deep_in_lists_and_quotes_is_said(deep: str) -> None:
    said = spoken_text(f"{deep}\n\nAnd the end.").text
    assert "level 29" in said
    assert said.endswith("And the end.")
