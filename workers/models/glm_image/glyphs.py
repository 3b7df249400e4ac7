"""Glyph texts: the words in quotes of a prompt, which the picture is to show letter by letter.

    glyph_texts('A sign that says "Open"')   ["Open"]

The pairs of quotes and their order are those of Diffusers' ``GlmImagePipeline.get_glyph_texts``; a test compares the
two.
"""

import re

from omni_jobs.errors import InvalidRequest

MOST_BYTES = 2048
"""The most bytes of a prompt's glyph texts: Diffusers cuts each after 2,048 tokens, and a token is a byte."""

_QUOTES = tuple(re.compile(pair) for pair in (r"'([^']*)'", r"“([^“”]*)”", r'"([^"]*)"', r"「([^「」]*)」"))


def glyph_texts(prompt: str) -> list[str]:
    """Return the texts in quotes, those in single quotes first."""
    return [text for quotes in _QUOTES for text in quotes.findall(prompt)]


def check_glyph_texts(prompt: str) -> None:
    """Raise InvalidRequest for more text in quotes than the glyph encoder takes."""
    size = sum(len(text.encode()) + 1 for text in glyph_texts(prompt))  # each has an end
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"{size} bytes in quotes; a picture shows at most {MOST_BYTES}", field="messages.0.content"
        )
