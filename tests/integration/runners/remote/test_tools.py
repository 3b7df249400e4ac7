"""Tools, forms and logprobs asked of a server: what is sent, and what its answer, whole or in pieces, becomes."""

from typing import Any

import pytest

from omni_jobs.errors import ModelError
from tests.remote_stages import Recorded, prompt, remote_runner
from tests.services.openai_server import OpenAIServer, Stream, json_answer, piece

CHAT = "POST /v1/chat/completions"
RESPONSES = "POST /v1/responses"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
USE: dict[str, Any] = {"tools": TOOLS, "tool_choice": "auto"}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


def call(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": [fields]}}]}


async def test_calls_come_in_pieces(openai_server: OpenAIServer) -> None:
    openai_server.answers[CHAT] = [
        Stream([
            piece("One moment. "),
            call(index=0, id="call_a", type="function", function={"name": "weather", "arguments": ""}),
            call(index=0, function={"arguments": '{"city":'}),
            call(index=1, id="call_b", type="function", function={"name": "clock", "arguments": None}),
            call(index=0, function={"arguments": ' "Oslo"}'}),
            piece(finish_reason="tool_calls"),
        ])
    ]  # fmt: skip
    seen = Recorded()
    async with remote_runner(openai_server.url) as runner:
        output = await runner.run(prompt(tool_use={**USE, "parallel_tool_calls": False}), seen)
    assert (output.text, output.finish_reason) == ("One moment. ", "stop")
    assert output.tool_calls == [
        {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"id": "call_b", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
    ]
    assert output.warnings == []
    sent = openai_server.requests[-1].json
    assert (sent["tools"], sent["tool_choice"], sent["parallel_tool_calls"]) == (TOOLS, "auto", False)


async def test_calls_come_whole_without_ids(openai_server: OpenAIServer) -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("weather", "clock")]
    message = {"content": None, "tool_calls": calls}
    openai_server.answers[CHAT] = [json_answer({"choices": [{"message": message, "finish_reason": "tool_calls"}]})]
    async with remote_runner(openai_server.url, stream=False) as runner:
        output = await runner.run(prompt(tool_use=USE), Recorded())
    assert output.text == ""
    assert [each["function"]["name"] for each in output.tool_calls] == ["weather", "clock"]
    assert len({each["id"] for each in output.tool_calls}) == 2


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([call(index=0, function={"arguments": "{}"})], "without a name"),
        ([call(index=n, function={"name": "x"}) for n in range(129)], "more than 128 calls"),
        ([call(index=0, function={"name": "x", "arguments": "y" * (1 << 20)})] * 5, "more text than"),
    ],
    ids=["no name", "many", "long"],
)
async def test_calls_that_are_none_or_too_many_fail(
    openai_server: OpenAIServer, pieces: list[dict[str, Any]], message: str
) -> None:
    openai_server.answers[CHAT] = [Stream([*pieces, piece(finish_reason="tool_calls")])]
    async with remote_runner(openai_server.url) as runner:
        with pytest.raises(ModelError, match=message):
            await runner.run(prompt(tool_use=USE), Recorded())


async def test_a_form_and_logprobs_are_asked_for_and_told(openai_server: OpenAIServer) -> None:
    entry = {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [{"token": "e", "logprob": -1}]}
    told = piece("é")
    told["choices"][0]["logprobs"] = {"content": [entry], "refusal": None}
    openai_server.answers[CHAT] = [Stream([told, piece(finish_reason="stop")])]
    asked = {"response_format": FORM, "logprobs": True, "top_logprobs": 1}
    async with remote_runner(openai_server.url) as runner:
        output = await runner.run(prompt(parameters=asked), Recorded())
    assert output.result["logprobs"] == [
        {"token": "é", "logprob": -0.5, "bytes": [195, 169],
         "top_logprobs": [{"token": "e", "logprob": -1.0, "bytes": [101]}]}
    ]  # fmt: skip
    sent = openai_server.requests[-1].json
    assert (sent["response_format"], sent["logprobs"], sent["top_logprobs"]) == (FORM, True, 1)


@pytest.mark.parametrize(
    "entry", [5, {"token": 1, "logprob": 0}, {"token": "a"}, {"token": "a", "logprob": True}, {"token": "a" * 2000}]
)
async def test_logprobs_that_are_none_fail(openai_server: OpenAIServer, entry: Any) -> None:
    told = piece("a")
    told["choices"][0]["logprobs"] = {"content": [entry]}
    openai_server.answers[CHAT] = [Stream([told, piece(finish_reason="stop")])]
    async with remote_runner(openai_server.url) as runner:
        with pytest.raises(ModelError, match="logprobs"):
            await runner.run(prompt(parameters={"logprobs": True}), Recorded())


async def test_a_form_of_a_response_stands_in_its_text(openai_server: OpenAIServer) -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "{}"}]}
    openai_server.answers[RESPONSES] = [json_answer({"status": "completed", "output": [item]})]
    async with remote_runner(openai_server.url, "responses", stream=False) as runner:
        await runner.run(prompt("responses", parameters={"response_format": FORM}), Recorded())
    sent = openai_server.requests[-1].json
    assert sent["text"] == {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}}
    assert "response_format" not in sent
