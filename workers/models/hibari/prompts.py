"""What admission asks of a request that is to be spoken."""

from collections.abc import Mapping
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.prompts.messages import last_user_text
from omni_jobs.prompts.renderers import TokenlessRenderer
from workers.models.hibari.speakable import check_speakable


class HibariPromptRenderer(TokenlessRenderer):
    """The ``PromptRenderer`` of a directory of voices.

    The stage bounds the speech and not the text, because only the model knows how long a text takes to say.
    """

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for a request whose last user message is nothing that the voices can say."""
        check_speakable(last_user_text(request), InvalidRequest, "messages")

    def render(self, request: Mapping[str, Any]) -> str:
        return last_user_text(request)
