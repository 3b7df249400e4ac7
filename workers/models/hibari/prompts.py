"""What admission asks of a request that is to be spoken: a text that the voices can say."""

import unicodedata
from collections.abc import Mapping
from typing import Any

from omni_jobs.errors import InvalidInput, InvalidRequest, ModelError
from omni_jobs.prompts.messages import last_user_text
from omni_jobs.prompts.renderers import TokenlessRenderer


class HibariPromptRenderer(TokenlessRenderer):
    """The ``PromptRenderer`` of a directory of voices.

    The stage bounds the speech and not the text, because only the model knows how long a text takes to say.
    """

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for a request whose last user message is nothing that the voices can say."""
        check_speakable(last_user_text(request), InvalidRequest, "messages")

    def render(self, request: Mapping[str, Any]) -> str:
        return last_user_text(request)


def check_speakable(text: str, error: type[InvalidInput] | type[ModelError], field: str) -> None:
    """Raise ``error`` for a text without letters and digits, or with most of its letters in another script."""
    said = [character for character in text if character.isalnum()]
    if not said:
        raise error("there is nothing to say: the text has no letter and no digit", field=field)
    if sum(map(_is_latin, said)) * 2 < len(said):
        raise error("the voice speaks English, and most letters of the text are of another script", field=field)


def _is_latin(character: str) -> bool:
    return character.isascii() or unicodedata.name(character, "").startswith("LATIN ")
