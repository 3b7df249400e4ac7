"""What becomes of a response's body: the chat completion that makes it, and the names of its fields in errors."""

from pathlib import Path
from typing import Any

import pytest

from omni_jobs.errors import InvalidRequest
from omni_jobs.openai.asked_jobs import AskedJobs
from omni_jobs.openai.responses.request import WantedResponse, asked_response, names_at
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.requests import JobRequest, Upload, request_digest
from omni_jobs.tenants.caller import ANYONE

PIPELINES = load_pipelines(Path(__file__).parents[3] / "stage_configs")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "description": "Says it", "parameters": SCHEMA, "strict": True}

SAID = {"role": "assistant", "content": "One moment"}
CALL = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"}


def response(input: Any = "Hello", **more: Any) -> AskedJobs[WantedResponse]:
    return asked_response({"model": "chat", "input": input, **more}, PIPELINES)


def job(input: Any = "Hello", **more: Any) -> JobRequest:
    [request] = response(input, **more).requests
    return request


def messages(input: Any, **more: Any) -> list[dict[str, Any]]:
    made = job(input, **more).messages
    assert made is not None
    return [message.model_dump(exclude_none=True, warnings=False) for message in made]


def test_the_options_of_a_response_are_the_job_s() -> None:
    request = job(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=3,
        metadata={"a": "b"},
        service_tier="flex",
        seed=4,
        top_k=7,
        tools=[WEATHER],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
    )
    assert (request.max_completion_tokens, request.temperature, request.top_p) == (9, 0.5, 0.9)
    assert (request.logprobs, request.top_logprobs, request.metadata) == (True, 3, {"a": "b"})
    assert (request.priority, request.seed, request.stages) == ("low", 4, {"llm": {"top_k": 7}})
    assert request.tools is not None
    [tool] = request.tools
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    assert tool.model_dump() == {"type": "function", "function": function}
    assert request.tool_choice is not None
    assert request.tool_choice.model_dump() == {"type": "function", "function": {"name": "weather"}}  # type: ignore[union-attr]
    assert request.parallel_tool_calls is False


def test_the_form_of_a_text_has_an_object_of_its_own_in_a_job() -> None:
    format = {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True, "description": None}
    due = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    assert job(text={"format": format}).response_format == due
    assert job(text={"format": {"type": "json_object"}}).response_format == {"type": "json_object"}
    assert job(text={"format": {"type": "text"}}).response_format is None
    assert job(text={}).response_format is None


def test_items_become_messages() -> None:
    picture = Upload(b"PNG")
    made = messages(
        [
            {"role": "developer", "content": "Be kind."},
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "See"},
                    {"type": "input_image", "image_url": picture, "detail": "auto", "file_id": None},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                ],
            },
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "One moment", "annotations": [], "logprobs": []}],
            },
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": "{}", "status": "completed"},
            {"type": "function_call_output", "call_id": "c1", "output": "Rain"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "Noon"}]},
            {"type": "function_call", "call_id": "c3", "name": "clock", "arguments": "{}"},
        ],
        instructions="Be brief.",
    )
    assert [message["role"] for message in made] == [
        "system", "system", "user", "assistant", "tool", "tool", "assistant"
    ]  # fmt: skip
    assert (made[0]["content"], made[1]["content"]) == ("Be brief.", "Be kind.")
    assert [part["type"] for part in made[2]["content"]] == ["text", "image_url", "input_audio"]
    assert made[2]["content"][1]["image_url"]["url"]["data"] == picture.data
    assert made[3]["content"] == [{"type": "text", "text": "One moment"}]
    assert [(call["id"], call["function"]["name"]) for call in made[3]["tool_calls"]] == [
        ("c1", "weather"),
        ("c2", "clock"),
    ]
    assert (made[4]["tool_call_id"], made[4]["content"]) == ("c1", "Rain")
    assert [call["id"] for call in made[6]["tool_calls"]] == ["c3"]


def test_what_a_job_keeps_of_a_response_is_what_it_is_shown_with() -> None:
    asked = response(background=True, instructions="Be brief.", previous_response_id="resp_1")
    [kept] = asked.kept.values()
    assert kept == {"stage": "llm", "background": True, "instructions": True, "previous_response_id": "resp_1"}
    assert response().kept == {"response": {"stage": "llm"}}


def test_how_the_answer_is_sent_is_no_part_of_what_was_sent() -> None:
    body = {"model": "chat", "input": "x", "stream": True, "stream_options": {"include_obfuscation": False}}
    [submission] = asked_response(body, PIPELINES).submissions(body, 9, ANYONE, "k")
    assert submission.digest == request_digest({"model": "chat", "input": "x"})
    assert submission.idempotency_key == "k"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["Hello"]}, "input.0"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": 7}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": "x", "tool_calls": []}]}, "input.0.tool_calls"),
        ({"input": [{"role": "user", "content": ["x"]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0.text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.image_url"),
        ({"input": [{"role": "user", "content": [{"type": "refusal"}]}]}, "input.0.content.0.type"),
        ({"input": [{"type": ["x"]}]}, "input.0.type"),
        ({"input": [{"role": ["x"], "content": "x"}]}, "input.0.role"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input.0.name"),
        ({"input": [{"type": "function_call", "call_id": 7, "name": "x", "arguments": "{}"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "x", "arguments": "{"}]}, "input.0.arguments"),
        ({"input": [SAID, CALL, {**CALL, "name": "bad name"}]}, "input.2.name"),
        ({"input": [SAID, {**CALL, "call_id": 7}]}, "input.1.call_id"),
        ({"input": [CALL, {**CALL, "arguments": "{"}]}, "input.1.arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
        ({"instructions": 7}, "instructions"),
        ({"stream": "yes"}, "stream"),
        ({"background": 1}, "background"),
        ({"stream": True, "stream_options": {"every": 1}}, "stream_options.every"),
        ({"stream": True, "stream_options": [1]}, "stream_options"),
        ({"text": "json"}, "text"),
        ({"text": {"form": 1}}, "text.form"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"tools": "f"}, "tools"),
        ({"tools": ["f"]}, "tools.0"),
        ({"tools": [WEATHER, {"type": "function"}]}, "tools.1.name"),
        ({"tools": [{**WEATHER, "more": 1}]}, "tools.0.more"),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"include": "all"}, "include"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"modalities": 7}, "modalities"),
        ({"max_output_tokens": "7"}, "max_output_tokens"),
        ({"model": None}, "model"),
        ({"model": "speech"}, "model"),
    ],
)
def test_what_has_another_form_is_refused(more: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        response(**more)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("messages.0.content", "instructions"),
        ("messages.1.content.0.text", "previous_response_id"),
        ("messages.2.content.1.image_url.url", "input.0.content.1.image_url"),
        ("messages.2.content.1.input_audio.data", "input.0.content.1.input_audio.data"),
        ("messages.1.tool_calls.0.function.arguments", "previous_response_id"),
        ("messages.2.tool_calls.1.function.arguments", "input.1.arguments"),
        ("messages.2.tool_calls.1.id", "input.1.call_id"),
        ("messages", "input"),
        ("response_format.json_schema.schema.properties", "text.format.schema.properties"),
        ("tools.3.function.parameters", "tools.3.parameters"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("max_tokens", "max_output_tokens"),
        ("top_logprobs", "top_logprobs"),
        ("stages.llm.max_tokens", "stages.llm.max_tokens"),
    ],
)
def test_errors_of_the_job_name_the_client_s_field(field: str, name: str) -> None:
    places = {
        "messages.0": "instructions",
        "messages.1": "previous_response_id",
        "messages.2": "input.0",
        "messages.2.tool_calls.1": "input.1",
    }
    assert names_at(places)(field) == name
