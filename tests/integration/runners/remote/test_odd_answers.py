"""What real servers send beside what the standard of OpenAI says: what carries no meaning changes no job."""

import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from omni_jobs.errors import ModelError, OmniJobsError, RemoteUnavailable
from tests.oracles import samples
from tests.remote_stages import Recorded, prompt, recording, remote_runner
from tests.services.openai_server import Answer, Connection, OpenAIServer, Reply, Request, Stream, json_answer, piece
from workers.stages.types import OmniModelRunnerOutput

CHAT = "POST /v1/chat/completions"
RESPONSES = "POST /v1/responses"
HELLO = [piece("Hello "), piece("there")]
DONE = b"[DONE]"
EVENTS = "text/event-stream"
MESSAGE = {"role": "assistant", "content": "Hello there"}


async def ask(server: OpenAIServer, answer: Reply, endpoint: str = "chat", **settings: Any) -> OmniModelRunnerOutput:
    server.answers[CHAT if endpoint == "chat" else RESPONSES] = [answer]
    async with remote_runner(server.url, endpoint, **settings) as runner:
        return await runner.run(prompt(endpoint), Recorded())


def whole(message: Any = MESSAGE, finish_reason: Any = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}], **more}


def raw(*lines: bytes, content_type: str = EVENTS) -> Answer:
    return Answer(b"".join(lines), content_type=content_type)


def data(value: Any, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(value).encode() + end


SAYS = raw(data(piece("Hello ")), data(piece("there", "stop")))

# A piece beside the pieces of a text.


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": None},
        {"id": "x"},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{}]},
        {"choices": [{"delta": {"content": None, "tool_calls": None, "refusal": None, "audio": None}}]},
        {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": ""}]},
        {"choices": [{"delta": {"tool_calls": []}, "finish_reason": False}]},
        {"choices": [], "usage": {"prompt_tokens": "7"}},
        {"choices": [], "usage": {"prompt_tokens": -1}},
        {"choices": [], "usage": {"prompt_tokens": 1 << 60}},
        {"choices": [], "usage": {"prompt_tokens": 1.5, "completion_tokens": True}},
        {"choices": [], "usage": "none"},
        {"choices": [], "usage": []},
        {"type": "ping"},
        {"error": None, "choices": []},
        {"error": {"message": None, "code": None}, "choices": None},
        {"errors": [], "error": False},
        b"",
        b" ",
        b"null",
        b"7",
        b'"ping"',
        b"true",
        b"[]",
        b"{}",
    ],
    ids=repr,
)
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_piece_that_says_nothing_changes_nothing(openai_server: OpenAIServer, odd: Any, place: int) -> None:
    pieces: list[Any] = [*HELLO, piece(finish_reason="stop")]
    pieces.insert(place, odd)
    output = await ask(openai_server, Stream([*pieces, DONE]))
    assert (output.text, output.finish_reason, output.usage) == ("Hello there", "stop", None)
    assert not output.warnings


@pytest.mark.parametrize("name", ["ping", "heartbeat", "keep-alive"])
async def test_an_event_that_is_named_a_ping_may_hold_anything(openai_server: OpenAIServer, name: str) -> None:
    ping = f"event: {name}\ndata: {{still\n\n".encode()
    output = await ask(openai_server, raw(ping, data(piece("Hello ")), ping, data(piece("there", "stop"))))
    assert output.text == "Hello there"


async def test_a_usage_that_is_none_does_not_hide_one_that_is(openai_server: OpenAIServer) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    output = await ask(openai_server, Stream([*HELLO, piece(finish_reason="stop", usage=usage), {"usage": {}}, DONE]))
    assert output.usage == usage


async def test_only_the_first_choice_counts(openai_server: OpenAIServer) -> None:
    more = {"choices": [piece("Hi", "stop")["choices"][0], 1, {"delta": 7}]}
    assert (await ask(openai_server, Stream([more, DONE]))).text == "Hi"


# The end.


@pytest.mark.parametrize(
    ("answer", "finish_reason"),
    [
        (Stream([*HELLO, DONE]), "stop"),
        (Stream([*HELLO, b"[DONE] "]), "stop"),
        (raw(data(piece("Hello ")), data(piece("there")), b"data: [DONE]"), "stop"),
        (raw(data(piece("Hello ")), data(piece("there")), b"data: [DONE]\n"), "stop"),
        (raw(data(piece("Hello ")), data(piece("there", "stop"), b"")), "stop"),
        (raw(data(piece("Hello ")), data(piece("there", "stop")), b'data: {"usage": {"pro'), "stop"),
        (Stream([*HELLO, piece(finish_reason="stop")]), "stop"),
        (Stream([*HELLO, piece(finish_reason="stop")], broken=True), "stop"),
        (Stream([*HELLO, piece(finish_reason=7), DONE]), "stop"),  # type: ignore[arg-type]
        (Stream([*HELLO, piece(finish_reason="eos"), DONE]), "stop"),
        (Stream([*HELLO, piece(finish_reason="LENGTH"), DONE]), "length"),
        (Stream([*HELLO, piece(finish_reason="MAX_TOKENS"), DONE]), "length"),
        (json_answer(whole(finish_reason=None)), "stop"),
        (json_answer({"choices": [{"message": MESSAGE}]}), "stop"),
        (json_answer(whole(finish_reason="MAX_TOKENS")), "length"),
    ],
)
async def test_the_end_is_said_in_many_ways(openai_server: OpenAIServer, answer: Reply, finish_reason: str) -> None:
    output = await ask(openai_server, answer)
    assert (output.text, output.finish_reason) == ("Hello there", finish_reason)
    assert openai_server.paths() == ["/v1/chat/completions"]


async def test_a_stream_that_stays_open_after_its_end_is_not_waited_for(openai_server: OpenAIServer) -> None:
    async def open_(request: Request, connection: Connection) -> None:
        await connection.head(200, {"Content-Type": EVENTS, "Transfer-Encoding": "chunked"})
        await connection.chunk(SAYS.body)
        await connection.closed()

    assert (await ask(openai_server, open_, silence_s=600, total_s=600)).text == "Hello there"


@pytest.mark.parametrize("reason", ["ABORT", "error", "insufficient_system_resource"])
async def test_a_reply_that_was_given_up_may_be_tried_again(openai_server: OpenAIServer, reason: str) -> None:
    with pytest.raises(RemoteUnavailable, match="gave the request up"):
        await ask(openai_server, Stream([*HELLO, piece(finish_reason=reason), DONE]))


@pytest.mark.parametrize("reason", ["SAFETY", "PROHIBITED_CONTENT", "CONTENT_FILTER"])
async def test_a_reply_that_is_withheld_is_final(openai_server: OpenAIServer, reason: str) -> None:
    with pytest.raises(ModelError, match="content filter"):
        await ask(openai_server, json_answer(whole(finish_reason=reason)))


# The form.


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "answer",
    [
        json_answer(whole()),
        Answer(b"\xef\xbb\xbf" + json.dumps(whole()).encode()),
        Answer(b"\n\n  \r\n" + json.dumps(whole()).encode(), content_type="text/plain"),
        Answer(json.dumps(whole()).encode(), content_type=EVENTS),
        Answer(json.dumps(whole()).encode(), content_type=""),
        Answer(json.dumps(whole(), indent=2).encode() + b"\n", content_type="text/html"),
        Answer(gzip.compress(json.dumps(whole()).encode()), headers={"Content-Encoding": "gzip"}),
        Answer(
            gzip.compress(json.dumps(whole())[:20].encode())
            + gzip.compress(json.dumps(whole())[20:].encode())
            + b"\0\0",
            headers={"Content-Encoding": "x-gzip"},
        ),
        Answer(zlib.compress(json.dumps(whole()).encode()), headers={"Content-Encoding": "deflate"}),
        Answer(zlib.compress(json.dumps(whole()).encode())[2:-4], headers={"Content-Encoding": "deflate"}),
        SAYS,
        raw(b"\xef\xbb\xbf", SAYS.body),
        raw(b"\xef\xbb\xbf\n\n: hi\n\n", SAYS.body),
        raw(SAYS.body.replace(b"\n", b"\r")),
        raw(SAYS.body.replace(b"\n", b"\r\n")),
        raw(SAYS.body.replace(b"data: ", b"data:")),
        raw(b"id: 1\nretry: 5\nevent: message\n", SAYS.body, content_type="text/plain"),
        raw(SAYS.body, content_type="application/json"),
        raw(SAYS.body, content_type=""),
        Answer(gzip.compress(SAYS.body), content_type=EVENTS, headers={"Content-Encoding": "gzip"}),
    ],
)
async def test_the_first_bytes_tell_the_form_of_an_answer(
    openai_server: OpenAIServer, answer: Answer, stream: bool
) -> None:
    output = await ask(openai_server, answer, stream=stream)
    assert (output.text, output.finish_reason) == ("Hello there", "stop")


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}],
        ["Hello ", {"type": "image_url", "image_url": {}}, "there", None, 7, {"type": "text", "text": None}],
        [{"text": "Hello there"}, []],
    ],
)
@pytest.mark.parametrize("name", ["message", "delta"])
async def test_content_may_be_a_list_of_parts(openai_server: OpenAIServer, content: Any, name: str) -> None:
    answer = {"choices": [{name: {"content": content}, "finish_reason": "stop"}]}
    assert (await ask(openai_server, json_answer(answer))).text == "Hello there"


# What is told beside the text.


@pytest.mark.parametrize(
    "message",
    [
        {"content": "Hello there", "reasoning_content": "A greeting."},
        {"content": "Hello there", "reasoning": "A greeting.", "reasoning_content": "A greeting."},
        {"content": [{"type": "thinking", "thinking": "A greeting."}, {"type": "text", "text": "Hello there"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "A greeting."}]}, "Hello there"]},
        {"content": "Hello there", "reasoning_details": [{"type": "reasoning.text", "text": "A greeting."}]},
        {
            "content": "Hello there",
            "reasoning": "A greeting.",
            "reasoning_details": [
                {"type": "reasoning.summary", "summary": "A greeting."},
                {"type": "reasoning.encrypted", "data": "gAAA"},
            ],
        },
    ],
)
@pytest.mark.parametrize("name", ["message", "delta"])
async def test_reasoning_is_a_result_of_its_own(openai_server: OpenAIServer, message: Any, name: str) -> None:
    output = await ask(openai_server, json_answer({"choices": [{name: message, "finish_reason": "stop"}]}))
    assert (output.text, output.result) == ("Hello there", {"reasoning": "A greeting."})


@pytest.mark.parametrize(
    "beside",
    [
        {"content": "Hello there", "reasoning": None, "reasoning_details": [{"data": "gAAA"}]},
        {"content": [{"type": "redacted_thinking", "data": "gAAA"}, {"type": "text", "text": "Hello there"}]},
    ],
)
@pytest.mark.parametrize("name", ["message", "delta"])
async def test_reasoning_that_nobody_can_read_is_told(openai_server: OpenAIServer, beside: Any, name: str) -> None:
    output = await ask(openai_server, json_answer({"choices": [{name: beside, "finish_reason": "stop"}]}))
    assert (output.text, output.result) == ("Hello there", {})
    assert [each["code"] for each in output.warnings] == ["reasoning_hidden"]


async def test_pieces_of_reasoning_in_details_are_joined(openai_server: OpenAIServer) -> None:
    thoughts = [("A ", 0), ("greeting.", 0), ("Greet.", 1)]
    pieces = [{"reasoning_details": [{"type": "reasoning.text", "text": t, "index": n}]} for t, n in thoughts]
    events = [{"choices": [{"delta": each}]} for each in pieces]
    output = await ask(openai_server, Stream([*events, piece("Hello there", finish_reason="stop"), DONE]))
    assert (output.text, output.result) == ("Hello there", {"reasoning": "A greeting.\n\nGreet."})


@pytest.mark.parametrize("message", [{"refusal": "I cannot."}, {"content": None, "refusal": "I cannot."}])
@pytest.mark.parametrize("name", ["message", "delta"])
async def test_a_refusal_is_text_for_the_user(openai_server: OpenAIServer, message: Any, name: str) -> None:
    output = await ask(openai_server, json_answer({"choices": [{name: message, "finish_reason": "stop"}]}))
    assert output.text == "I cannot."
    assert [each["code"] for each in output.warnings] == ["refused"]


CALLS = [{"index": 0, "type": "function", "function": {"name": "weather", "arguments": "{}"}}]


@pytest.mark.parametrize("called", [{"tool_calls": CALLS}, {"function_call": {"name": "weather", "arguments": ""}}])
@pytest.mark.parametrize("name", ["message", "delta"])
async def test_calls_of_tools_are_told(openai_server: OpenAIServer, called: Any, name: str) -> None:
    choice = {name: {"content": "Hello there", **called}, "finish_reason": "tool_calls"}
    output = await ask(openai_server, json_answer({"choices": [choice]}))
    assert output.text == "Hello there"
    assert [each["code"] for each in output.warnings] == ["tool_calls"]
    assert "weather" in output.warnings[0]["message"]
    choice[name]["content"] = None  # type: ignore[index]
    with pytest.raises(ModelError, match="calls tools, which no stage runs: weather"):
        await ask(openai_server, json_answer({"choices": [choice]}))


# Errors.


LIMITED = {"code": 429, "message": "Provider returned error: rate limited"}


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ({"error": LIMITED}, RemoteUnavailable, "429: Provider returned error: rate limited"),
        ([{"error": LIMITED}], RemoteUnavailable, "429: Provider"),
        ({"errors": [LIMITED]}, RemoteUnavailable, "429: Provider"),
        ({"choices": [{"error": LIMITED, "finish_reason": "error"}]}, RemoteUnavailable, "429: Provider"),
        ({"error": {"code": "429", "message": "m"}}, RemoteUnavailable, "429: m"),
        ({"error": {"status": 503, "code": "x", "message": "m"}}, RemoteUnavailable, "503: m"),
        ({"error": "m", "status_code": 400}, ModelError, "400: m"),
        ({"error": {"code": None, "type": "rate_limit_error", "message": "m"}}, RemoteUnavailable, "429: m"),
        ({"error": {"status": "RESOURCE_EXHAUSTED", "message": "m"}}, RemoteUnavailable, "429: m"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, RemoteUnavailable, "503: m"),
        ({"error": {"type": "invalid_request_error", "message": "m"}}, ModelError, "400: m"),
        ({"object": "error", "message": "m", "code": 400}, ModelError, "400: m"),
        ({"error": {"code": "0400" + "9" * 5000, "message": "m"}}, RemoteUnavailable, "500: m"),
        ({"error": {"code": "40010", "message": "m"}}, RemoteUnavailable, "500: m"),
        ({"error": {"code": 10**30, "message": "m"}}, RemoteUnavailable, "500: m"),
        ({"error": {"code": True, "message": "m"}}, RemoteUnavailable, "500: m"),
        ({"error": True, "message": "m"}, RemoteUnavailable, "500: m"),
        ({"error": {"message": {"a": ["m"]}}}, RemoteUnavailable, r'500: {"a":\["m"\]}'),
        ({"error": {"message": "m" * 100_000, "code": 400}}, ModelError, "400: mmm"),
        ({"error": {"code": 400, "x": ["a"] * 20_000, "message": "m"}}, ModelError, "400: m"),
    ],
    ids=lambda value: repr(value)[:60],
)
@pytest.mark.parametrize("form", ["whole", "event", "after a piece"])
@pytest.mark.parametrize("endpoint", ["chat", "responses"])
async def test_an_error_of_a_successful_answer_is_the_error_it_says(
    openai_server: OpenAIServer, endpoint: str, form: str, error: Any, kind: type[OmniJobsError], message: str
) -> None:
    before = {"type": "response.output_text.delta", "delta": "Hi"} if endpoint == "responses" else HELLO[0]
    answer = json_answer(error) if form == "whole" else Stream([*([before] if form != "event" else ()), error, DONE])
    with pytest.raises(kind, match=message) as caught:
        await ask(openai_server, answer, endpoint)
    assert type(caught.value) is kind
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("speech", "audio/speech"),
        ("transcriptions", "audio/transcriptions"),
        ("images", "images/generations"),
        ("videos", "videos"),
    ],
)
@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
async def test_every_endpoint_reads_errors_of_successful_answers(
    openai_server: OpenAIServer, endpoint: str, path: str, content_type: str
) -> None:
    openai_server.answers[f"POST /v1/{path}"] = [Answer(json.dumps({"error": LIMITED}).encode(), 200, content_type)]
    async with remote_runner(openai_server.url, endpoint) as runner:
        with pytest.raises(RemoteUnavailable, match="429: Provider returned error: rate limited"):
            await runner.run(prompt(endpoint, recordings=[recording()]), Recorded())


@pytest.mark.parametrize("words", [b"the model died", b'{"message": "the model died"}'])
async def test_an_event_that_is_named_an_error_is_one(openai_server: OpenAIServer, words: bytes) -> None:
    with pytest.raises(RemoteUnavailable, match="500: the model died"):
        await ask(openai_server, raw(data(piece("Hello ")), b"event: error\ndata: " + words + b"\n\n"))


# Responses.

SAID: dict[str, Any] = {"type": "message", "content": [{"type": "output_text", "text": "Hello there"}]}
DELTA = {"type": "response.output_text.delta", "delta": "Hello there"}


@pytest.mark.parametrize(
    "answer",
    [
        json_answer({"object": "response", "status": "completed", "output": [SAID]}),
        json_answer({"output": [None, 7, {"type": "reasoning", "content": None}, SAID]}),
        json_answer(
            {"id": "r", "status": "completed", "error": None, "output": [SAID], "usage": {"input_tokens": "x"}}
        ),
        Stream([DELTA, DONE]),
        Stream([{"type": "response.created"}, None, {}, DELTA, {"type": "response.completed", "response": {}}]),
        Stream([{"type": "response.completed", "response": {"status": "completed", "output": [SAID]}}]),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_may_be_odd(openai_server: OpenAIServer, answer: Reply, stream: bool) -> None:
    output = await ask(openai_server, answer, "responses", stream=stream)
    assert (output.text, output.finish_reason, output.usage) == ("Hello there", "stop", None)


async def test_a_response_tells_what_is_beside_its_text(openai_server: OpenAIServer) -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "A greeting."}]},
        {"type": "function_call", "name": "weather", "arguments": "{}"},
        {"type": "message", "content": [{"type": "refusal", "refusal": "I cannot."}]},
    ]
    output = await ask(openai_server, json_answer({"status": "completed", "output": items}), "responses")
    assert (output.text, output.result) == ("I cannot.", {"reasoning": "A greeting."})
    assert sorted(each["code"] for each in output.warnings) == ["refused", "tool_calls"]


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "A greeting."}]}
RAW = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "A greeting."}]}


def completed(*items: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"status": "completed", "output": list(items)}}


def thinks(kind: str, text: Any, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "item_id": "rs_1", "output_index": 0, "delta": text, **more}


REASONED: dict[str, Reply] = {
    "a summary": json_answer({"status": "completed", "output": [THOUGHT, SAID]}),
    "its text": json_answer({"status": "completed", "output": [RAW, SAID]}),
    "the same as text and summary": json_answer({"output": [{**RAW, "summary": THOUGHT["summary"]}, SAID]}),
    "encrypted as well": json_answer({"output": [{**THOUGHT, "encrypted_content": "gAAA"}, SAID]}),
    "a text that streams, a summary that does not": Stream([DELTA, completed(THOUGHT, SAID)]),
    "the same, in items": Stream(
        [
            {"type": "response.output_item.done", "output_index": 0, "item": THOUGHT},
            DELTA,
            {"type": "response.output_item.done", "output_index": 1, "item": SAID},
            completed(THOUGHT, SAID),
        ]
    ),
    "items alone": Stream(
        [
            {"type": "response.output_item.done", "item": RAW},
            {"type": "response.output_item.done", "item": SAID},
            completed(),
        ]
    ),
    "all of it in pieces": Stream(
        [
            thinks("reasoning_summary_text", "A ", summary_index=0),
            thinks("reasoning_summary_text", "greeting.", summary_index=0),
            {"type": "response.output_item.done", "item": THOUGHT},
            DELTA,
            completed(THOUGHT, SAID),
        ]
    ),
    "reasoning in pieces, the text whole": Stream([thinks("reasoning_text", "A greeting."), completed(RAW, SAID)]),
    "pieces that are objects": Stream([thinks("reasoning", {"text": "A greeting."}), DELTA, completed()]),
    "of a summary, by its old name": Stream([thinks("reasoning_summary", "A greeting."), DELTA, DONE]),
}


@pytest.mark.parametrize("way", REASONED)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_reasoning_of_a_response_is_told_once(openai_server: OpenAIServer, way: str, stream: bool) -> None:
    output = await ask(openai_server, REASONED[way], "responses", stream=stream)
    assert (output.text, output.result) == ("Hello there", {"reasoning": "A greeting."})
    assert not output.warnings


@pytest.mark.parametrize(
    "answer",
    [
        json_answer(
            {"output": [{**THOUGHT, "summary": ["One.", {"text": "Two."}]}, {**RAW, "content": ["Three."]}, SAID]}
        ),
        Stream(
            [
                thinks("reasoning_summary_text", "One.", summary_index=0),
                thinks("reasoning_summary_text", "Two.", summary_index=1),
                thinks("reasoning_text", "Thr", item_id="rs_2"),
                thinks("reasoning_text", "ee.", item_id="rs_2"),
                DELTA,
                completed(SAID),
            ]
        ),
    ],
)  # fmt: skip
async def test_parts_of_reasoning_are_paragraphs(openai_server: OpenAIServer, answer: Reply) -> None:
    output = await ask(openai_server, answer, "responses")
    assert (output.text, output.result) == ("Hello there", {"reasoning": "One.\n\nTwo.\n\nThree."})


async def test_encrypted_reasoning_of_a_response_is_told(openai_server: OpenAIServer) -> None:
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}
    output = await ask(openai_server, Stream([DELTA, completed(hidden, SAID)]), "responses")
    assert (output.text, output.result) == ("Hello there", {})
    assert [each["code"] for each in output.warnings] == ["reasoning_hidden"]


async def test_a_refusal_behind_pieces_of_text_is_told(openai_server: OpenAIServer) -> None:
    both = {**SAID, "content": [*SAID["content"], {"type": "refusal", "refusal": "I cannot."}]}
    output = await ask(openai_server, Stream([DELTA, completed(both)]), "responses")
    assert output.text == "Hello there\nI cannot."
    assert [each["code"] for each in output.warnings] == ["refused"]


async def test_a_response_with_an_error_and_no_status_says_it(openai_server: OpenAIServer) -> None:
    with pytest.raises(RemoteUnavailable, match="429: Provider"):
        await ask(openai_server, json_answer({"error": LIMITED, "output": []}), "responses")


# Media.


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_U8", "FLOAT", "ULAW"])
async def test_a_later_stage_takes_a_wav_of_any_form(openai_server: OpenAIServer, subtype: str) -> None:
    openai_server.answers["POST /v1/audio/speech"] = [
        Answer(samples.audio(0.1, subtype=subtype), content_type="audio/wav")
    ]
    async with remote_runner(openai_server.url, "speech") as runner:
        output = await runner.run(prompt("speech", audio_format="wav", capture=True), Recorded())
    assert output.multimodal_outputs["waveform"].shape == (1600,)
    assert abs(output.multimodal_outputs["waveform"]).max() == pytest.approx(0.5, abs=0.02)


async def test_speech_may_come_in_events(openai_server: OpenAIServer) -> None:
    sound = samples.wav(0.1)
    parts = [{"type": "speech.audio.delta", "audio": b64(part)} for part in (sound[:1000], sound[1000:])]
    openai_server.answers["POST /v1/audio/speech"] = [Stream([*parts, {"type": "speech.audio.done"}]), Stream(parts)]
    async with remote_runner(openai_server.url, "speech") as runner:
        output = await runner.run(prompt("speech", audio_format="wav"), Recorded())
        with pytest.raises(RemoteUnavailable, match="broke off"):
            await runner.run(prompt("speech", audio_format="wav"), Recorded())
    assert output.encoded["audio"].data == sound


PICTURE = samples.image(32, 32)


@pytest.mark.parametrize(
    "answer",
    [
        json_answer({"data": [{"b64_json": b64(PICTURE)}, 7]}),
        json_answer({"data": [{"b64_json": f"data:image/png;base64,{b64(PICTURE)}", "url": None}]}),
        json_answer({"data": [{"b64_json": None, "url": f"data:image/png;base64,{b64(PICTURE)}"}], "usage": 7}),
        json_answer({"data": [{"b64_json": "\n".join(b64(PICTURE)[at : at + 76] for at in range(0, 4000, 76))}]}),
        Stream(
            [
                {"type": "image_generation.partial_image", "b64_json": "AAAA"},
                {"type": "image_generation.completed", "b64_json": b64(PICTURE)},
            ]
        ),
    ],
)
async def test_a_picture_may_come_in_other_ways(openai_server: OpenAIServer, answer: Reply) -> None:
    openai_server.answers["POST /v1/images/generations"] = [answer]
    async with remote_runner(openai_server.url, "images") as runner:
        output = await runner.run(prompt("images"), Recorded())
    assert output.encoded["image"].data == PICTURE


@pytest.mark.parametrize(
    "answer",
    [
        json_answer({"text": "Hello there", "usage": {"type": "duration", "seconds": 3}}),
        Answer(b'{"text": "Hello there"}', content_type="text/plain"),
        Answer(b"Hello there\n", content_type="text/plain; charset=utf-8"),
        Stream(
            [{"type": "transcript.text.delta", "delta": "Hel"}, {"type": "transcript.text.done", "text": "Hello there"}]
        ),
        Stream([{"delta": "Hello "}, {"delta": "there"}, DONE]),
    ],
)
async def test_a_transcript_may_come_in_other_ways(openai_server: OpenAIServer, answer: Reply) -> None:
    openai_server.answers["POST /v1/audio/transcriptions"] = [answer]
    async with remote_runner(openai_server.url, "transcriptions") as runner:
        output = await runner.run(prompt("transcriptions", recordings=[recording()]), Recorded())
    assert (output.text, output.finish_reason, output.usage) == ("Hello there", "stop", None)


async def test_a_plain_transcript_is_whole_or_refused(openai_server: OpenAIServer) -> None:
    openai_server.answers["POST /v1/audio/transcriptions"] = [Answer(b"a " * (3 << 20), content_type="text/plain")]
    async with remote_runner(openai_server.url, "transcriptions") as runner:
        with pytest.raises(ModelError, match="more text than"):
            await runner.run(prompt("transcriptions", recordings=[recording()]), Recorded())


async def test_a_video_tells_its_progress_or_not(openai_server: OpenAIServer) -> None:
    states = [
        {"status": "queued", "progress": None},
        {"status": "in_progress", "progress": "half"},
        {"status": "completed"},
    ]
    openai_server.answers["POST /v1/videos"] = [
        json_answer({"id": "v", "status": "queued", "progress": [], "error": {}})
    ]
    openai_server.answers["GET /v1/videos/v"] = [json_answer({"id": "v", **state}) for state in states]
    openai_server.answers["GET /v1/videos/v/content"] = [Answer(samples.video(2), content_type="video/mp4")]
    async with remote_runner(openai_server.url, "videos") as runner:
        assert (await runner.run(prompt("videos"), Recorded())).encoded["video"].format == "mp4"
