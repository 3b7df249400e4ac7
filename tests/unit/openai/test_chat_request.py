"""What becomes of a chat completion's body: the requests of its jobs."""

from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.chat.request import WantedAnswer, asked_chat
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import JobRequest, request_digest
from omni_jobs.tenants.caller import ANYONE

PIPELINES = load_pipelines(Path(__file__).parents[3] / "stage_configs")
HELLO = [{"role": "user", "content": "Hello"}]


def chat(model: str = "chat", **more: Any) -> AskedJobs[WantedAnswer]:
    return asked_chat({"model": model, "messages": HELLO, **more}, PIPELINES)


def only(**more: Any) -> JobRequest:
    [request] = chat(**more).requests
    return request


def test_the_options_of_a_text_are_the_job_s() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    same: dict[str, Any] = {
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "stop": ["a", "b", "c", "d"],
        "response_format": {"type": "json_object"},
        "logprobs": True,
        "top_logprobs": 3,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "metadata": {"a": "b"},
        "seed": 4,
    }
    request = only(**same, tools=[tool])
    assert {name: getattr(request, name) for name in same} == same
    assert request.tools is not None
    assert request.tools[0].function.name == "f"
    assert request.modalities == ["text"]
    assert chat().answer.text_stage == PIPELINES["chat"].outputs["text"].stage


@pytest.mark.parametrize(
    ("tier", "priority"),
    [
        (None, None),
        ("auto", "normal"),
        ("default", "normal"),
        ("scale", "normal"),
        ("flex", "low"),
        ("priority", "high"),
        ("fast", "high"),
    ],
)
def test_a_service_tier_is_a_priority(tier: str | None, priority: str | None) -> None:
    assert only(service_tier=tier).priority == priority


def test_vllm_s_names_are_parameters_of_the_stage_that_makes_the_text() -> None:
    stage = chat().answer.text_stage
    request = only(top_k=-1, min_p=0.1, ignore_eos=True, stages={stage: {"lora": "a", "min_p": 0.1}})
    assert request.stages == {stage: {"lora": "a", "min_p": 0.1, "top_k": 0, "ignore_eos": True}}
    with pytest.raises(InvalidRequest, match=f"stages.{stage}.min_p") as caught:
        chat(min_p=0.2, stages={stage: {"min_p": 0.1}})
    assert caught.value.field == "min_p"


def test_the_choices_have_seeds_and_keys_of_their_own() -> None:
    asked = chat(n=3, seed=7)
    assert [request.seed for request in asked.requests] == [7, 8, 9]
    assert [each.idempotency_key for each in asked.submissions({}, 9, ANYONE, "k")] == ["k", "k#1", "k#2"]
    assert [each.idempotency_key for each in asked.submissions({}, 9, ANYONE, None)] == [None] * 3
    assert [request.seed for request in chat(n=2).requests] == [None, None]


def test_how_the_answer_is_sent_is_no_part_of_what_was_sent() -> None:
    body = {"model": "chat", "stream": True, "stream_options": {"include_usage": True}}
    [submission] = chat(stream=True).submissions(body, 9, ANYONE, "k")
    assert submission.digest == request_digest({"model": "chat"})


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"seed": "7"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"every": 1}}, "stream_options.every"),
        ({"stream": True, "stream_options": [1]}, "stream_options"),
        ({"stages": []}, "stages"),
        ({"stages": [], "top_k": 1}, "stages"),
        ({"audio": "wav"}, "audio"),
        ({"audio": {"format": 7}}, "audio.format"),
        ({"service_tier": ["flex"]}, "service_tier"),
        ({"modalities": "text"}, "modalities"),
        ({"messages": None}, "messages"),
        ({"messages": ["Hello"]}, "messages.0"),
        ({"model": 7}, "model"),
        ({"model": None}, "model"),
        ({"model": "speech"}, "model"),
        ({"messages": [{"role": "assistant", "audio": {"id": "audio-1"}}]}, "messages.0.audio"),
    ],
)
def test_what_has_another_form_is_refused(more: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**more)
    assert caught.value.field == field
