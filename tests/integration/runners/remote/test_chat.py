"""Chat completions and responses: what is sent, what comes back, and how it grows."""

import asyncio
from typing import Any

import pytest

from omni_jobs.errors import EngineDead, InvalidRequest, ModelError, RemoteUnavailable, RequestTooLarge
from tests.remote_stages import KEY, Recorded, prompt, remote_runner
from tests.services.openai_server import (
    Answer,
    Connection,
    OpenAIServer,
    Request,
    Stream,
    completion,
    error_answer,
    json_answer,
    piece,
)

CHAT = "POST /v1/chat/completions"
RESPONSES = "POST /v1/responses"


async def test_a_text_grows_and_ends_with_usage(openai_server: OpenAIServer) -> None:
    more = asyncio.Event()

    async def in_two_parts(request: Request, connection: Connection) -> None:
        await connection.head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        await connection.chunk(b": a comment\r\n\r\nevent: x\r\ndata: " + _json(piece("Good ")) + b"\r\n\r\n")
        await more.wait()
        whole = b"data: " + _json(piece("morning €")) + b"\n\n"
        for at in range(0, len(whole), 7):  # through the euro sign, too
            await connection.chunk(whole[at : at + 7])
        for event in (piece(finish_reason="length"), {"choices": [], "usage": _usage(5, 2)}):
            await connection.chunk(b"data:" + _json(event) + b"\n\n")
        await connection.chunk(b"data: [DONE]\n\n")
        await connection.send(b"0\r\n\r\n")

    openai_server.answers[CHAT] = [in_two_parts]
    seen = Recorded()

    def progress(each: Any) -> None:
        seen(each)
        if each.text == "Good ":
            more.set()

    asked = prompt(parameters={"max_tokens": 9, "temperature": 0.5, "stop": ["x"], "top_k": 4})
    async with remote_runner(openai_server.url) as runner:
        output = await runner.run(asked, progress)
    assert (output.text, output.finish_reason) == ("Good morning €", "length")
    assert output.usage == {"prompt_tokens": 5, "completion_tokens": 2}
    assert (seen[0].done, seen[0].total, seen[0].unit) == (0, 9, "tokens")
    assert seen[1].text == "Good "
    sent = openai_server.requests[-1]
    assert sent.json == {
        "model": "smol",
        "messages": [{"role": "user", "content": "Say hi."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 7,
        "max_tokens": 9,
        "temperature": 0.5,
        "stop": ["x"],
        "top_k": 4,
    }
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.headers["accept-encoding"] == "identity"


async def test_connections_are_used_again(openai_server: OpenAIServer) -> None:
    openai_server.answers[CHAT] = [completion("Hi")]
    async with remote_runner(openai_server.url) as runner:
        for _ in range(5):
            assert (await runner.run(prompt(), Recorded())).text == "Hi"
    assert openai_server.connections <= 2  # one of them asked for the models


async def test_the_stage_config_decides_on_fields(openai_server: OpenAIServer) -> None:
    openai_server.answers[CHAT] = [json_answer(_whole("Hi"))]
    settings = {
        "stream": False,
        "system": "Be brief.",
        "max_tokens_name": "max_completion_tokens",
        "extra_body": {"seed": None, "chat_template_kwargs": {"enable_thinking": False}},
    }
    async with remote_runner(openai_server.url, **settings) as runner:
        assert (await runner.run(prompt(parameters={"max_tokens": 4}), Recorded())).text == "Hi"
    assert openai_server.requests[-1].json == {
        "model": "smol",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi."}],
        "stream": False,
        "max_completion_tokens": 4,
        "chat_template_kwargs": {"enable_thinking": False},
    }


async def test_a_model_speaks(openai_server: OpenAIServer) -> None:
    message = {"content": None, "audio": {"id": "a", "data": "UklGRgAAAABXQVZF", "transcript": "Hi", "expires_at": 1}}
    openai_server.answers[CHAT] = [json_answer({"choices": [{"message": message, "finish_reason": "stop"}]})]
    async with remote_runner(openai_server.url, speaks=True) as runner:
        output = await runner.run(prompt(audio_format="wav", voice="alloy"), Recorded())
    assert output.text == "Hi"
    assert output.encoded["audio"].format == "wav"
    assert output.encoded["audio"].data == b"RIFF\0\0\0\0WAVE"
    sent = openai_server.requests[-1].json
    assert (sent["modalities"], sent["audio"]) == (["text", "audio"], {"voice": "alloy", "format": "wav"})


async def test_a_cancel_closes_the_connection(openai_server: OpenAIServer) -> None:
    talking, gone = asyncio.Event(), asyncio.Event()

    async def endless(request: Request, connection: Connection) -> None:
        await connection.head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        await connection.chunk(b"data: " + _json(piece("Well,")) + b"\n\n")
        talking.set()
        await connection.closed()
        gone.set()

    openai_server.answers[CHAT] = [endless]
    async with remote_runner(openai_server.url) as runner:
        run = asyncio.create_task(runner.run(prompt(), Recorded()))
        await talking.wait()
        run.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await run
            await gone.wait()
        assert runner.healthy


async def test_close_ends_the_runs(openai_server: OpenAIServer) -> None:
    asked = asyncio.Event()

    async def silent(request: Request, connection: Connection) -> None:
        asked.set()
        await connection.closed()

    openai_server.answers[CHAT] = [silent]
    async with remote_runner(openai_server.url) as runner:
        run = asyncio.create_task(runner.run(prompt(), Recorded()))
        await asked.wait()
        await runner.close()
        with pytest.raises(EngineDead, match="closed"):
            await run
        assert not runner.healthy
        with pytest.raises(EngineDead, match="closed"):
            await runner.run(prompt(), Recorded())
        await runner.close()


async def test_a_prompt_of_another_runner_is_refused(openai_server: OpenAIServer) -> None:
    async with remote_runner(openai_server.url) as runner:
        with pytest.raises(ModelError, match="takes RemotePrompt, not str"):
            await runner.run("Hi", Recorded())


@pytest.mark.parametrize(
    ("answer", "kind", "field", "message"),
    [
        (error_answer(400, "too hot", param="temperature"), InvalidRequest, "stages.llm.temperature", "too hot"),
        (error_answer(422, "m", param="max_completion_tokens"), InvalidRequest, "stages.llm.max_tokens", "m"),
        (error_answer(400, "no", param="messages[0].content"), InvalidRequest, "messages.0.content", "no"),
        (error_answer(400, "the context is full"), ModelError, None, "400: the context is full"),
        (error_answer(404, "no model", param="model"), ModelError, "engine.model", "no model"),
        (error_answer(413, "long"), RequestTooLarge, None, "long"),
        (error_answer(403, f"who is {KEY}?\n\x00"), ModelError, None, r"who is \[key\]\?"),
        (json_answer({"detail": "FastAPI's"}, 422), ModelError, None, "FastAPI's"),
        (json_answer({"error": "a string"}, 400), ModelError, None, "a string"),
        (Answer(b"<html>\xff" + b"x" * 100_000, 418, "text/html"), ModelError, None, "418: .xxx"),
        (Answer(b"", 307, headers={"Location": "http://127.0.0.1:1/"}), ModelError, None, "redirect"),
        (Answer(b"", 302, headers={"Location": "/v1/models"}), ModelError, None, "redirect"),
        (
            Stream([{"error": {"message": "bad", "code": 400, "param": "top_p"}}]),
            InvalidRequest,
            "stages.llm.top_p",
            "bad",
        ),
        (Stream([piece("a", "content_filter"), b"[DONE]"]), ModelError, None, "content filter"),
    ],
)
async def test_a_refusal_is_final_and_says_why(
    openai_server: OpenAIServer, answer: Answer, kind: type[Exception], field: str | None, message: str
) -> None:
    openai_server.answers[CHAT] = [answer]
    async with remote_runner(openai_server.url, tries=3, wait_s=5) as runner:
        with pytest.raises(kind, match=message) as caught:
            await runner.run(prompt(), Recorded())
        assert runner.healthy
    assert type(caught.value) is kind
    assert caught.value.field == field
    assert not caught.value.retryable
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert openai_server.paths().count("/v1/chat/completions") == 1


async def test_a_response_streams(openai_server: OpenAIServer) -> None:
    delta = {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0}
    response = {"status": "completed", "output": [], "usage": {"input_tokens": 4, "output_tokens": 2}}
    openai_server.answers[RESPONSES] = [
        Stream(
            [
                {"type": "response.created", "sequence_number": 0, "response": {"status": "in_progress", "output": []}},
                {**delta, "delta": "Good "},
                {**delta, "delta": "day"},
                {"type": "response.completed", "response": response},
            ]
        )
    ]
    messages = [
        {"role": "assistant", "content": [{"type": "text", "text": "What?"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    ]
    async with remote_runner(openai_server.url, "responses", system="Be kind.") as runner:
        output = await runner.run(prompt("responses", messages=messages, parameters={"max_tokens": 5}), Recorded())
    assert (output.text, output.finish_reason) == ("Good day", "stop")
    assert output.usage == {"prompt_tokens": 4, "completion_tokens": 2}
    assert openai_server.requests[-1].json == {
        "model": "smol",
        "instructions": "Be kind.",
        "input": [
            {"role": "assistant", "content": [{"type": "output_text", "text": "What?"}]},
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}],
            },
        ],
        "stream": True,
        "store": False,
        "max_output_tokens": 5,
    }


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, ModelError),
        ({"status": "failed", "error": {"code": "invalid_prompt", "message": "bad"}}, ModelError),
        ({"status": "failed", "error": {"code": "server_error", "message": "bad"}}, RemoteUnavailable),
        ({"status": "in_progress"}, RemoteUnavailable),
    ],
)
async def test_a_response_ends_in_other_ways(
    openai_server: OpenAIServer, response: dict[str, Any], expected: str | type[Exception], stream: bool
) -> None:
    texts = [{"type": "output_text", "text": "Hi"}]
    response = {"output": [{"type": "reasoning"}, {"type": "message", "content": texts}], **response}
    event = {"type": "response.completed", "response": response}
    openai_server.answers[RESPONSES] = [Stream([event]) if stream else json_answer(response)]
    async with remote_runner(openai_server.url, "responses", stream=stream) as runner:
        if isinstance(expected, str):
            output = await runner.run(prompt("responses"), Recorded())
            assert (output.text, output.finish_reason) == ("Hi", expected)
        else:
            with pytest.raises(expected):
                await runner.run(prompt("responses"), Recorded())


def _json(value: Any) -> bytes:
    import orjson

    return orjson.dumps(value)


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}


def _whole(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
