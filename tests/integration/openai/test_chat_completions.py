"""Chat completions with the stock client: real workers answer, whole and in streams, in text and in sound."""

import io
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import soundfile

from omni_jobs.openai.waiting import wait_limit_s
from tests.integration.api_server import ApiServer
from tests.integration.openai.stock import Stock
from tests.oracles import samples

WORDS = "The Pharos of Alexandria was a lighthouse, 漢字 and 😀 too."
LATE_S = 60.0


def parts(*media: dict[str, Any], text: str = "What is this?") -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}, *media]}]


def slowly(seconds: float) -> dict[str, Any]:
    return {"stages": {"answer": {"delay_s": seconds}}}


def running_job(api: ApiServer) -> str:
    """The id of the job that a request waits for, once it runs."""
    while True:
        jobs = api.http.get("/v1/jobs", params={"status": "in_progress", "limit": 1}).json()["jobs"]
        if jobs:
            return str(jobs[0]["id"])


# Whole answers.


def test_a_whole_answer(stock: Stock, echo_media: ApiServer) -> None:
    completion = stock.chat(WORDS, metadata={"order": "42"}, seed=7)
    [choice] = completion.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == ("assistant", WORDS, None)
    assert choice.message.refusal is None
    words = len(WORDS.split())
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (words, words, 2 * words)
    assert (completion.object, completion.model, completion.service_tier) == (
        "chat.completion",
        "echo_media",
        "default",
    )
    job = echo_media.http.get(f"/v1/jobs/{completion.id.replace('chatcmpl-', 'job-')}").json()
    assert (job["status"], job["metadata"], job["seed"]) == ("completed", {"order": "42"}, 7)


def test_a_text_that_is_cut_ends_for_its_length(stock: Stock) -> None:
    completion = stock.chat("one two three", max_completion_tokens=2)
    assert (completion.choices[0].message.content, completion.choices[0].finish_reason) == ("one two", "length")


def test_what_is_ignored_is_told(stock: Stock) -> None:
    raw = stock.client.chat.completions.with_raw_response.create(
        model="echo_media",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Hello", "name": "Ada"},
        ],
        user="u-1",
        reasoning_effort="low",
        store=None,
    )
    assert raw.headers["x-ignored"] == "reasoning_effort, user, messages.name"
    assert raw.parse().choices[0].message.content == "Hello"
    assert (
        "x-ignored"
        not in stock.client.chat.completions.with_raw_response.create(
            model="echo_media", messages=[{"role": "user", "content": "Hello"}]
        ).headers
    )


def test_an_answer_goes_into_the_next_request_as_it_came(stock: Stock) -> None:
    first = stock.chat("Hello").choices[0].message
    messages = [{"role": "user", "content": "Hello"}, first, {"role": "user", "content": "And again"}]
    assert stock.chat(messages=messages).choices[0].message.content == "And again"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"logit_bias": {"50256": -100}}, "logit_bias"),
        ({"extra_body": {"best_of": 3}}, "best_of"),
        ({"n": 17}, "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"temperature": 9}, "temperature"),
        ({"modalities": ["text", "image"]}, "modalities.1"),
        ({"service_tier": "urgent"}, "service_tier"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": parts({"type": "file", "file": {"file_id": "file-1"}})}, "messages.0.content.1"),
        ({"modalities": ["audio"], "audio": {"voice": "nobody", "format": "wav"}}, "audio.voice"),
        ({"extra_body": {"top_k": 5}}, "stages.answer.top_k"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
def test_what_is_refused_is_a_bad_request_that_names_it(stock: Stock, more: dict[str, Any], param: str) -> None:
    error = stock.error(openai.BadRequestError, lambda: stock.chat(**more))
    assert (error.code, error.type, error.param) == ("invalid_request", "invalid_request_error", param)
    assert error.request_id


def test_an_unknown_model_is_not_found(stock: Stock) -> None:
    error = stock.error(openai.NotFoundError, lambda: stock.chat(model="gpt-6-sol"))
    assert (error.code, error.param) == ("not_found", "model")


# Streams.


def test_a_stream_grows(stock: Stock, echo_media: ApiServer) -> None:
    stream = stock.chat(WORDS, stream=True, stream_options={"include_usage": True}, extra_body=slowly(2.0))
    chunks = list(stream)
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert (chunks[0].object, chunks[0].choices[0].delta.role) == ("chat.completion.chunk", "assistant")
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(texts) == WORDS
    assert len(texts) > 1
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(WORDS.split())
    assert {chunk.usage for chunk in chunks[:-1]} == {None}
    job = echo_media.http.get(f"/v1/jobs/{chunks[0].id.replace('chatcmpl-', 'job-')}").json()
    assert job["result"]["text"] == WORDS


def test_the_client_s_own_helper_puts_a_stream_together(stock: Stock) -> None:
    with stock.client.chat.completions.stream(
        model="echo_media", messages=[{"role": "user", "content": WORDS}], n=2
    ) as stream:
        for _ in stream:
            pass
        completion = stream.get_final_completion()
    assert [choice.message.content for choice in completion.choices] == [WORDS, WORDS]
    assert completion.usage is None


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "text"}},
        {"logprobs": False},
        {"logprobs": False, "top_logprobs": 0},
        {"tools": []},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tool_choice": "none"},
        {"parallel_tool_calls": True},
    ],
)
def test_what_asks_for_nothing_is_taken_by_a_stage_that_has_nothing_of_it(stock: Stock, asked: dict[str, Any]) -> None:
    """Frameworks send such defaults to every server."""
    assert stock.chat("Hello", **asked).choices[0].message.content == "Hello"


def test_a_refused_stream_is_a_bad_request(stock: Stock) -> None:
    error = stock.error(openai.BadRequestError, lambda: stock.chat(stream=True, temperature=9))
    assert error.param == "temperature"


# Several choices.


def test_several_choices_are_several_jobs(stock: Stock, echo_media: ApiServer) -> None:
    completion = stock.chat("one two", n=3, seed=5, metadata={"order": "43"})
    assert [(each.index, each.message.content) for each in completion.choices] == [(n, "one two") for n in range(3)]
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
        2,
        6,
        8,
    )
    jobs = echo_media.http.get("/v1/jobs", params={"limit": 3}).json()["jobs"]
    assert [job["seed"] for job in reversed(jobs)] == [5, 6, 7]
    assert {job["metadata"]["order"] for job in jobs} == {"43"}


@pytest.mark.parametrize("n", [1, 2])
def test_a_key_gives_the_same_answer_again(stock: Stock, n: int) -> None:
    headers = {"Idempotency-Key": f"order-{n}"}
    first = stock.chat("Once", n=n, extra_headers=headers)
    assert stock.chat("Once", n=n, extra_headers=headers).to_dict() == first.to_dict()
    error = stock.error(openai.BadRequestError, lambda: stock.chat("Twice", n=n, extra_headers=headers))
    assert (error.code, error.param) == ("idempotency_key_reused", "Idempotency-Key")


# Sound and pictures.


@pytest.mark.parametrize(
    ("format", "begins"),
    [
        ("wav", b"RIFF"),
        ("flac", b"fLaC"),
        ("mp3", (b"ID3", b"\xff\xfb", b"\xff\xf3")),
        ("opus", b"OggS"),
        ("aac", (b"\xff\xf1", b"\xff\xf9")),
        ("pcm16", b""),
    ],
)
def test_an_answer_is_spoken(stock: Stock, format: Any, begins: Any) -> None:
    completion = stock.chat("x" * 20, modalities=["text", "audio"], audio={"voice": "nova", "format": format})
    audio = completion.choices[0].message.audio
    assert (audio.transcript, completion.choices[0].message.content) == ("x" * 20, "x" * 20)
    assert audio.expires_at > completion.created + 3600
    data = b64decode(audio.data, validate=True)
    assert data.startswith(begins)
    if format in ("wav", "flac"):
        sound, rate = soundfile.read(io.BytesIO(data))
        assert len(sound) / rate == pytest.approx(1.0, abs=0.01)


def test_a_stream_ends_with_its_sound(stock: Stock) -> None:
    options = {"voice": {"id": "onyx"}, "format": "wav"}
    chunks = list(stock.chat("x" * 40, modalities=["text", "audio"], audio=options, stream=True))
    *sounds, end = [chunk.choices[0].delta.audio for chunk in chunks if chunk.choices[0].delta.audio is not None]
    assert sounds[0].transcript == "x" * 40
    assert (end.data, end.expires_at > chunks[0].created) == (None, True)
    data = b"".join(b64decode(sound.data, validate=True) for sound in sounds)
    sound, rate = soundfile.read(io.BytesIO(data))
    assert len(sound) / rate == pytest.approx(2.0, abs=0.01)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_speech_alone_has_no_text(stock: Stock) -> None:
    completion = stock.chat("x" * 20, modalities=["audio"], audio={"voice": "echo", "format": "wav"})
    assert completion.choices[0].message.content is None
    assert completion.choices[0].message.audio.data


def test_sound_and_pictures_arrive(stock: Stock) -> None:
    sound = {"data": b64encode(samples.wav(2.0)).decode(), "format": "wav"}
    picture = {"url": f"data:image/png;base64,{b64encode(samples.image(64, 48)).decode()}", "detail": "high"}
    media = ({"type": "input_audio", "input_audio": sound}, {"type": "image_url", "image_url": picture})
    lines = stock.chat(messages=parts(*media)).choices[0].message.content.splitlines()
    assert lines[:2] == ["What is this?", "440 Hz for 2.00 s"]
    assert lines[2].startswith("a picture of 64 x 48 pixels")


# Jobs that do not complete in time.


@pytest.mark.parametrize("header", ["x-stainless-read-timeout", "x-stainless-timeout"])
def test_a_job_that_goes_on_is_told_before_the_client_gives_up(
    stock: Stock, echo_media: ApiServer, header: str
) -> None:
    waits = {header: "1"}  # it waits for longer, so that a busy machine is no other case
    error = stock.error(
        openai.InternalServerError, lambda: stock.chat("a b", extra_body=slowly(600), extra_headers=waits)
    )
    assert (error.status_code, error.code) == (504, "still_running")
    assert isinstance(error.body, dict)
    path = f"/v1/jobs/{error.body['job_id']}"
    assert error.response.headers["location"] == path
    assert error.response.headers["x-should-retry"] == "false"
    assert echo_media.http.get(path).json()["status"] in ("queued", "in_progress")
    echo_media.http.post(f"{path}/cancel")


def test_the_client_says_how_long_it_waits(stock: Stock) -> None:
    stock.client.with_options(timeout=70.0).models.list()
    stock.client.models.list()
    assert [wait_limit_s(570.0, [header]) for header in stock.read_timeouts] == [63.0, 570.0]


def test_a_cancelled_job_is_a_conflict(stock: Stock, echo_media: ApiServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stock.error, openai.ConflictError, lambda: stock.chat("a b", extra_body=slowly(600)))
        job_id = running_job(echo_media)
        echo_media.http.post(f"/v1/jobs/{job_id}/cancel")
        error = waiting.result(LATE_S)
    assert (error.code, error.type) == ("job_cancelled", "conflict_error")
    assert error.body["job_id"] == job_id  # type: ignore[index]


def test_a_stream_whose_job_is_cancelled_ends_in_an_error(stock: Stock, echo_media: ApiServer) -> None:
    stream = stock.chat("a b", stream=True, extra_body=slowly(600))
    job_id = next(stream).id.replace("chatcmpl-", "job-")
    echo_media.http.post(f"/v1/jobs/{job_id}/cancel")
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "job_cancelled"
    assert caught.value.body["job_id"] == job_id  # type: ignore[index]


def test_a_stream_is_lines_that_end_in_a_line_feed_alone(echo_media: ApiServer) -> None:
    """Readers that split at two line feeds, such as vLLM's load tool, find its events."""
    body = {"model": "echo_media", "messages": [{"role": "user", "content": WORDS}], "stream": True}
    with echo_media.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        received = answer.read()
    assert b"\r" not in received
    assert received.endswith(b"data: [DONE]\n\n")
