"""workers.models.hibari.prompts: the text of a request, and what the voices cannot say."""

from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest
from workers.models.hibari.prompts import HibariPromptRenderer


def request(*messages: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def texts(*parts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": part} for part in parts]


@pytest.fixture
def renderer(tmp_path: Path) -> HibariPromptRenderer:
    return HibariPromptRenderer(tmp_path)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([("user", "Hello there.")], "Hello there."),
        ([("user", texts("One.", "Two."))], "One.\nTwo."),
        ([("user", "First."), ("assistant", "No."), ("user", "Last."), ("assistant", "Yes.")], "Last."),
    ],
)
def test_the_last_user_message_is_said(
    renderer: HibariPromptRenderer, messages: list[tuple[str, Any]], text: str
) -> None:
    renderer.check(request(*messages))
    assert renderer.render(request(*messages)) == text
    assert renderer.encode(request(*messages)) is None
    assert renderer.count_tokens(request(*messages), ()) <= renderer.prompt_limit(())


@pytest.mark.parametrize("text", ["7", "Naïve café, 3 %!", "Say 你好 to them.", "ñ", "🙂 yes"])
def test_latin_letters_and_digits_are_said(renderer: HibariPromptRenderer, text: str) -> None:
    renderer.check(request(("user", text)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "nothing to say"),
        (" \n\t", "nothing to say"),
        ("... !?", "nothing to say"),
        ("🙂🎉", "nothing to say"),
        ("你好，世界", "another script"),
        ("Привет, мир!", "another script"),
        ("مرحبا OK", "another script"),
    ],
)
def test_a_text_that_no_voice_can_say_is_refused(renderer: HibariPromptRenderer, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as raised:
        renderer.check(request(("user", text)))
    assert raised.value.field == "messages"


def test_a_request_without_a_user_message_is_refused(renderer: HibariPromptRenderer) -> None:
    with pytest.raises(InvalidRequest, match="nothing to say"):
        renderer.check(request(("system", "Speak.")))
