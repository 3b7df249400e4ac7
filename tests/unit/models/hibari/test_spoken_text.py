"""workers.models.hibari.spoken_text: what the voice gets of a text, and what it cannot say."""

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
    "5 * 3 and 5 − 3 at −5 °C": "5 times 3 and 5 minus 3 at -5 °C",
    "1½ and 10⁶": "1 and ½ and 10 to the power of 6",
    "The cafe\u0301 is ﬁne": "The café is ﬁne",
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
