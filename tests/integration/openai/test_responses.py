"""Responses with the stock client: real workers answer, at once, in streams, and in the background."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from anyio import CapacityLimiter

from tests.integration.api_server import ApiServer
from tests.integration.openai.stock import Stock
from tests.oracles import samples

WORDS = "The Pharos of Alexandria was a lighthouse, 漢字 and 😀 too."


def respond(stock: Stock, input: Any = WORDS, **more: Any) -> Any:
    return stock.client.responses.create(**{"model": "echo_media", "input": input, **more})


def slowly(seconds: float) -> dict[str, Any]:
    return {"stages": {"answer": {"delay_s": seconds}}}


def parts(*media: dict[str, Any], text: str = "What is this?") -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "input_text", "text": text}, *media]}]


# Whole answers.


def test_a_whole_response(stock: Stock, echo_media: ApiServer) -> None:
    response = respond(stock, instructions="Be brief.", metadata={"order": "42"}, temperature=0.5)
    assert (response.output_text, response.object, response.model) == (WORDS, "response", "echo_media")
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    [item] = response.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    words = len(WORDS.split())
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (words, words, 2 * words)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (0, 0)
    assert (response.instructions, response.metadata, response.temperature) == ("Be brief.", {"order": "42"}, 0.5)
    assert (response.background, response.tools, response.tool_choice) == (False, [], "auto")
    assert response.created_at <= response.completed_at
    assert stock.client.responses.retrieve(response.id) == response
    job = echo_media.http.get(f"/v1/jobs/{response.id.replace('resp_', 'job-')}").json()
    assert (job["status"], job["metadata"]) == ("completed", {"order": "42"})


def test_a_text_that_is_cut_is_incomplete(stock: Stock) -> None:
    response = respond(stock, "one two three", max_output_tokens=2)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.output_text, response.output[0].status, response.max_output_tokens) == ("one two", "incomplete", 2)


def test_what_is_ignored_is_told(stock: Stock) -> None:
    raw = stock.client.responses.with_raw_response.create(
        model="echo_media",
        input=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        store=False,
        reasoning={"effort": "low"},
        include=["reasoning.encrypted_content"],
        text={"format": {"type": "text"}, "verbosity": "low"},
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        truncation="disabled",
    )
    names = {"store", "reasoning", "include", "text.verbosity", "truncation"}
    assert set(raw.headers["x-ignored"].split(", ")) == names
    assert raw.parse().output_text == "Hello"


def test_sound_and_pictures_arrive(stock: Stock) -> None:
    sound = {"data": b64encode(samples.wav(2.0)).decode(), "format": "wav"}
    picture = f"data:image/png;base64,{b64encode(samples.image(64, 48)).decode()}"
    media = (
        {"type": "input_audio", "input_audio": sound},
        {"type": "input_image", "image_url": picture, "detail": "high"},
    )
    response = respond(stock, parts(*media))
    lines = response.output_text.splitlines()
    assert lines[:2] == ["What is this?", "440 Hz for 2.00 s"]
    assert lines[2].startswith("a picture of 64 x 48 pixels")
    [item] = stock.client.responses.input_items.list(response.id)
    assert [part.type for part in item.content] == ["input_text", "input_audio", "input_image"]


def test_an_output_goes_into_the_next_input_as_it_came(stock: Stock) -> None:
    first = respond(stock, "Hello")
    second = respond(
        stock, [{"role": "user", "content": "Hello"}, *first.output, {"role": "user", "content": "And again"}]
    )
    assert second.output_text == "And again"
    roles = [item.role for item in stock.client.responses.input_items.list(second.id, order="asc")]
    assert roles == ["user", "assistant", "user"]


def test_a_request_waits_for_its_turn_with_all_that_it_follows(
    stock: Stock, echo_media: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = respond(stock, "x" * 50_000)
    lanes, sizes = echo_media.services.lanes, []
    lane_of = lanes._lane_of

    def seen(of: Sequence[int]) -> CapacityLimiter:
        sizes.extend(of)
        return lane_of(of)

    monkeypatch.setattr(lanes, "_lane_of", seen)
    respond(stock, "And again", previous_response_id=first.id)
    body, parsed, admitted = sizes
    assert body < 1_000
    assert 100_000 < parsed == admitted < 101_000


def test_a_response_follows_another(stock: Stock) -> None:
    first = respond(stock, "Hello", instructions="Be brief.")
    second = respond(stock, "And again", previous_response_id=first.id, instructions="Be long.")
    third = respond(stock, "And at last", previous_response_id=second.id)
    assert (third.previous_response_id, third.instructions, third.output_text) == (second.id, None, "And at last")
    items = [*stock.client.responses.input_items.list(third.id, order="asc")]
    said = [(item.role, item.content[0].text) for item in items]
    assert said == [
        ("user", "Hello"),
        ("assistant", "Hello"),
        ("user", "And again"),
        ("assistant", "And again"),
        ("user", "And at last"),
    ]


def test_the_items_of_an_input_come_in_pages(stock: Stock) -> None:
    response = respond(stock, [{"role": "user", "content": f"Number {number}"} for number in range(7)])
    list_items = stock.client.responses.input_items.list
    newest = list_items(response.id, limit=3)
    assert [item.content[0].text for item in newest.data] == ["Number 6", "Number 5", "Number 4"]
    assert newest.has_more
    assert (newest.first_id, newest.last_id) == (newest.data[0].id, newest.data[2].id)  # type: ignore[attr-defined]
    assert [item.content[0].text for item in newest] == [f"Number {6 - number}" for number in range(7)]
    after = list_items(response.id, order="asc", after=newest.data[2].id, include=["message.input_image.image_url"])
    assert [item.content[0].text for item in after.data] == ["Number 5", "Number 6"]
    assert not after.has_more
    error = stock.error(openai.NotFoundError, lambda: list_items(response.id, after="msg_1"))
    assert error.param == "after"


# In the background.


def test_a_response_in_the_background_is_polled(stock: Stock) -> None:
    response = respond(stock, background=True, extra_body=slowly(0.5))
    assert response.status in ("queued", "in_progress")
    assert (response.background, response.output, response.usage) == (True, [], None)
    while response.status in ("queued", "in_progress"):
        response = stock.client.responses.retrieve(response.id)
    assert (response.status, response.output_text, response.background) == ("completed", WORDS, True)


def test_a_response_that_runs_is_cancelled_and_deleted(stock: Stock) -> None:
    response = respond(stock, background=True, extra_body=slowly(600))
    while response.status == "queued":
        response = stock.client.responses.retrieve(response.id)
    for _ in range(2):
        assert stock.client.responses.cancel(response.id).status == "cancelled"
    assert stock.client.responses.retrieve(response.id).status == "cancelled"
    stock.client.responses.delete(response.id)
    for call in (stock.client.responses.retrieve, stock.client.responses.cancel, stock.client.responses.delete):
        error = stock.error(openai.NotFoundError, lambda call=call: call(response.id))  # type: ignore[misc]
        assert error.param == "response_id"


def test_a_response_that_runs_is_deleted(stock: Stock, echo_media: ApiServer) -> None:
    response = respond(stock, background=True, extra_body=slowly(600))
    deleted = echo_media.http.delete(f"/v1/responses/{response.id}")
    assert deleted.json() == {"id": response.id, "object": "response", "deleted": True}
    assert echo_media.http.get(f"/v1/jobs/{response.id.replace('resp_', 'job-')}").status_code == 404


def test_a_key_gives_the_same_response_again(stock: Stock) -> None:
    headers = {"Idempotency-Key": "response-1"}
    first = respond(stock, "Once", extra_headers=headers)
    assert respond(stock, "Once", extra_headers=headers) == first
    assert list(respond(stock, "Once", stream=True, extra_headers=headers))[-1].response == first
    error = stock.error(openai.BadRequestError, lambda: respond(stock, "Twice", extra_headers=headers))
    assert error.code == "idempotency_key_reused"


# Streams.


def test_a_stream_grows(stock: Stock) -> None:
    events = list(respond(stock, stream=True, extra_body=slowly(1.0)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:5] == ["created", "queued", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert set(kinds[5:-4]) == {"output_text.delta"}
    assert len(kinds) > 10
    assert "".join(event.delta for event in events[5:-4]) == WORDS
    assert [event.sequence_number for event in events[:5]] == [0, 1, 2, 3, 4]
    length = 5 + len(WORDS)
    assert [event.sequence_number for event in events[-5:]] == [length + number for number in range(5)]
    response = events[-1].response
    assert [event.response.status for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert events[-2].item == response.output[0]
    assert stock.client.responses.retrieve(response.id) == response


def test_the_client_s_own_helper_puts_a_stream_together(stock: Stock) -> None:
    with stock.client.responses.stream(model="echo_media", input=WORDS, background=True) as stream:
        first = next(stream)
        response = stream.get_final_response()
    assert (response.output_text, first.type) == (WORDS, "response.created")
    with stock.client.responses.stream(response_id=response.id, starting_after=30) as again:
        rest = list(again)
        assert again.get_final_response().output_text == WORDS
    assert rest[0].type == "response.output_text.delta"
    assert rest[-1].type == "response.completed"


def test_a_stream_that_breaks_off_is_taken_up(stock: Stock) -> None:
    broken = respond(stock, stream=True, background=True, extra_body=slowly(1.0))
    text, last, response_id = "", -1, ""
    for event in broken:
        last = event.sequence_number
        response_id = response_id or event.response.id
        if event.type == "response.output_text.delta":
            text += event.delta
            break
    broken.close()
    for event in stock.client.responses.retrieve(response_id, stream=True, starting_after=last):
        assert event.sequence_number > last
        if event.type == "response.output_text.delta":
            text += event.delta
    assert (text, event.type, event.response.output_text) == (WORDS, "response.completed", WORDS)


def test_head_says_what_get_would_and_ends(stock: Stock, echo_media: ApiServer) -> None:
    url = f"/v1/responses/{respond(stock, background=True, extra_body=slowly(600)).id}"
    answer = echo_media.http.head(f"{url}?stream=true")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert echo_media.http.delete(url).status_code == 200
    assert echo_media.http.head(f"{url}?stream=true").status_code == 404


# What does not complete, and what is refused.


def test_a_job_that_goes_on_is_told_before_the_client_gives_up(stock: Stock) -> None:
    waits = {"x-stainless-read-timeout": "1"}  # it waits for longer, so that a busy machine is no other case
    error = stock.error(openai.InternalServerError, lambda: respond(stock, extra_body=slowly(600), extra_headers=waits))
    assert (error.status_code, error.code) == (504, "still_running")
    response_id = error.body["job_id"].replace("job-", "resp_")  # type: ignore[index]
    assert stock.client.responses.cancel(response_id).status == "cancelled"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"extra_body": {"best_of": 3}}, "best_of"),
        ({"extra_body": {"max_tokens": 3}}, "max_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"service_tier": "urgent"}, "service_tier"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "user", "content": ""}]}, "input.1.content"),
        ({"input": parts({"type": "input_file", "file_id": "file-1"})}, "input.0.content.1.type"),
        ({"input": parts({"type": "input_image", "file_id": "file-1"})}, "input.0.content.1.file_id"),
        ({"input": parts({"type": "input_image", "image_url": "file:///x"})}, "input.0.content.1.image_url"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        ({"instructions": ""}, "instructions"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}]}, "tools"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"extra_body": {"modalities": ["audio"]}}, "modalities"),
    ],
)
def test_what_is_refused_is_a_bad_request_that_names_it(stock: Stock, more: dict[str, Any], param: str) -> None:
    error = stock.error(openai.BadRequestError, lambda: respond(stock, **more))
    assert (error.code, error.type, error.param) == ("invalid_request", "invalid_request_error", param)


def test_what_cannot_be_followed_is_refused(stock: Stock, echo_media: ApiServer) -> None:
    unknown = "resp_" + "0" * 32
    error = stock.error(openai.NotFoundError, lambda: respond(stock, previous_response_id=unknown))
    assert error.param == "previous_response_id"
    running = respond(stock, background=True, extra_body=slowly(600))
    error = stock.error(openai.BadRequestError, lambda: respond(stock, previous_response_id=running.id))
    assert error.param == "previous_response_id"
    stock.client.responses.delete(running.id)
    picture = f"data:image/png;base64,{b64encode(samples.image(64, 48)).decode()}"
    seen = respond(stock, parts({"type": "input_image", "image_url": picture, "detail": "auto"}))
    error = stock.error(openai.BadRequestError, lambda: respond(stock, previous_response_id=seen.id))
    assert error.param == "previous_response_id"


def test_a_job_that_is_no_response_is_not_found(stock: Stock, echo_media: ApiServer) -> None:
    other = stock.chat("Hello").id.replace("chatcmpl-", "resp_")
    for response_id in (other, "resp_1", "resp_" + "0" * 32, "job-1", "resp_\u202e", "x" * 300):
        error = stock.error(
            openai.NotFoundError,
            lambda response_id=response_id: stock.client.responses.retrieve(response_id),  # type: ignore[misc]
        )
        assert error.param == "response_id"
    assert stock.error(openai.NotFoundError, lambda: respond(stock, model="gpt-6-sol")).param == "model"


@pytest.mark.parametrize("after", ["-2", "x", "9" * 30, "1.5"])
def test_what_no_stream_can_begin_with_is_refused(stock: Stock, after: Any) -> None:
    response = respond(stock, "Hello")
    call = lambda: stock.client.responses.retrieve(response.id, stream=True, starting_after=after)  # noqa: E731
    assert stock.error(openai.BadRequestError, call).param == "starting_after"
