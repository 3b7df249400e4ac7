"""What a completed job is as a chat completion."""

from datetime import UTC, datetime
from typing import Any

import pytest

from omni_jobs.openai.chat.answer import GAP, completion_of, sound_of
from omni_jobs.states import JobState, StageRunState
from omni_jobs.views import JobView, StageRunView

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALL = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def job(reason: str | None, **result: Any) -> JobView:
    run = StageRunView.model_construct(name="llm", status=StageRunState.SUCCEEDED, finish_reason=reason)
    return JobView.model_construct(
        id="job-1",
        pipeline="chat",
        pipeline_version="1",
        status=JobState.COMPLETED,
        created_at=NOW,
        modalities=["text"],
        stages=[run],
        result=result,
    )


@pytest.mark.parametrize(
    ("reason", "result", "due"),
    [
        ("stop", {"text": "Hm.", "finish_reason": "tool_calls", "tool_calls": [CALL]}, "tool_calls"),
        ("length", {"text": "Hm", "finish_reason": "length"}, "length"),
        ("length", {}, "length"),
        (None, {"text": "Hm."}, "stop"),
    ],
)
def test_a_reason_is_told_in_openai_s_words(reason: str | None, result: dict[str, Any], due: str) -> None:
    [choice] = completion_of([job(reason, **result)], "llm", {}).choices
    assert choice.finish_reason == due
    assert choice.message.tool_calls == result.get("tool_calls")


def test_the_sounds_go_into_their_gaps_and_no_text_has_one() -> None:
    jobs = [job("stop", text=f"Say {GAP}").model_copy(update={"id": f"job-{n}", "finished_at": NOW}) for n in range(3)]
    sounds = {each.id: sound_of(each, 60.0) for each in jobs[1:]}
    assert completion_of(jobs, "llm", sounds).model_dump_json().count(GAP) == 2
