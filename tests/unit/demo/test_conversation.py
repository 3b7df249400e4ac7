"""omni_jobs.demo.conversation: a question, and an answer that grows."""

import pytest
from rich.console import Console

from omni_jobs.demo.conversation import Conversation
from omni_jobs.states import StageRunState
from omni_jobs.views import ProgressView, StageRunView


def so_far(text: str | None) -> StageRunView:
    return StageRunView(
        name="llm",
        status=StageRunState.RUNNING,
        attempt=1,
        reason=None,
        queued_at=None,
        started_at=None,
        finished_at=None,
        progress=ProgressView(done=1, total=9, unit="tokens", text=text),
        payload_bytes=None,
        worker=None,
        errors=[],
    )


def test_a_text_is_shown_as_it_grows(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(Console())
    for _ in range(2):
        conversation.ask("Count.")
    for text in (None, "One", "One", "One two\x1b[2J"):
        conversation.follow(so_far(text))
    conversation.end("One two\x1b[2J three.")
    assert capsys.readouterr().out == "\n> Count.\n\nOne two�[2J three.\n"


def test_a_text_that_begins_anew_is_shown_anew(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(Console())
    conversation.ask("?")
    for text in ("One", "On"):
        conversation.follow(so_far(text))
    conversation.end("Once more")
    assert capsys.readouterr().out == "\n> ?\n\nOne\n\nOnce more\n"
