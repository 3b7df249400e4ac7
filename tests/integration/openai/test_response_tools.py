"""Tools and forms of responses, asked of a real chat template with the stock client. The test is the worker."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from pydantic import BaseModel

from omni_jobs.database.database import Database
from tests.integration.api_server import SHIPPED, ApiServer, serve, server_settings
from tests.integration.hand_worker import HandWorker
from tests.integration.openai.stock import Stock, stock_client

LATE_S = 60.0
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {
    "type": "function", "name": "weather", "description": "Says it", "parameters": PARAMETERS, "strict": None
}  # fmt: skip
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
TOKEN = {"token": "It", "logprob": -0.5, "bytes": [73, 116], "top_logprobs": []}


class Place(BaseModel):
    city: str


@pytest.fixture(scope="module")
def api(tiny_tool_caller: Path, valkey_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    directory = tmp_path_factory.mktemp("responses")
    config = yaml.safe_load((SHIPPED / "chat.yaml").read_text(encoding="utf-8"))
    config["stages"]["llm"]["engine"]["tool_parser"] = "hermes"
    (directory / "chat.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    settings = server_settings(directory, valkey_server, stage_configs=directory, models={"chat": tiny_tool_caller})
    Database(settings.resolved_database_url).migrate()
    with serve(settings) as server:
        yield server


@pytest.fixture
def stock(api: ApiServer) -> Iterator[Stock]:
    with stock_client(f"http://{api.host}:{api.port}") as client:
        yield client


def asked(stock: Stock, input: Any = "How is the weather?", **more: Any) -> Any:
    return stock.client.responses.create(**{"model": "chat", "input": input, "background": True, **more})


def complete(api: ApiServer, response: Any, **result: Any) -> HandWorker:
    worker = HandWorker(api, response.id.replace("resp_", "job-"), "chat")
    worker.complete(worker.claim("llm"), result=result, finish_reason="stop")
    return worker


def test_a_call_of_a_tool_is_an_item_and_goes_into_the_next_input(api: ApiServer, stock: Stock) -> None:
    first = asked(
        stock, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"}, parallel_tool_calls=False
    )
    complete(api, first, text="", tool_calls=[CALL], finish_reason="tool_calls")
    first = stock.client.responses.retrieve(first.id)
    [call] = first.output
    assert (first.status, first.output_text, first.parallel_tool_calls) == ("completed", "", False)
    assert (call.type, call.call_id, call.name, json.loads(call.arguments)) == (
        "function_call",
        "call_1",
        "weather",
        {"city": "Oslo"},
    )
    assert first.tools[0].to_dict() == WEATHER
    assert first.tool_choice.to_dict() == {"type": "function", "name": "weather"}

    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    whole = asked(stock, [{"role": "user", "content": "How is the weather?"}, *first.output, answer], tools=[WEATHER])
    followed = asked(stock, [answer], tools=[WEATHER], previous_response_id=first.id)
    requests = [
        api.services.jobs.admitted_request(response.id.replace("resp_", "job-")) for response in (whole, followed)
    ]
    listed = [
        [item.type for item in stock.client.responses.input_items.list(response.id, order="asc")]
        for response in (whole, followed)
    ]
    assert listed == [["message", "function_call", "function_call_output"]] * 2
    for response in (whole, followed):
        stock.client.responses.delete(response.id)
    says = [[(each["role"], each.get("tool_calls")) for each in request["messages"]] for request in requests]
    assert says == [[("user", None), ("assistant", [CALL]), ("tool", None)]] * 2


def test_calls_are_told_after_the_text(api: ApiServer, stock: Stock) -> None:
    response = asked(stock, tools=[WEATHER])
    complete(api, response, text="One moment", tool_calls=[CALL, {**CALL, "id": "call_2"}])
    events = list(stock.client.responses.retrieve(response.id, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert kinds[9:] == [*call, *call, "completed"]
    assert [event.sequence_number for event in events[9:]] == list(range(19, 28))
    assert [event.output_index for event in events[9:17]] == [1] * 4 + [2] * 4
    assert [event.item for event in events if event.type == "response.output_item.done"] == events[-1].response.output
    with stock.client.responses.stream(response_id=response.id, tools=[WEATHER]) as stream:
        output = stream.get_final_response().output
    assert [item.type for item in output] == ["message", "function_call", "function_call"]


@pytest.mark.parametrize("text", ["", "One moment"])
def test_calls_are_told_at_the_same_places_wherever_the_stream_is_taken_up(
    api: ApiServer, stock: Stock, text: str
) -> None:
    response = asked(stock, tools=[WEATHER])
    complete(api, response, text=text, tool_calls=[CALL, {**CALL, "id": "call_2"}])
    told = [event.to_dict() for event in stock.client.responses.retrieve(response.id, stream=True)]
    for number, event in enumerate(told):
        after = event["sequence_number"]
        rest = stock.client.responses.retrieve(response.id, stream=True, starting_after=after)
        assert [event.to_dict() for event in rest] == told[number + 1 :]


def test_a_text_by_a_schema_is_parsed(api: ApiServer, stock: Stock) -> None:
    with ThreadPoolExecutor(1) as pool:
        parsing = pool.submit(stock.client.responses.parse, model="chat", input="Where is it?", text_format=Place)
        while not (jobs := api.http.get("/v1/jobs?status=queued").json()["jobs"]):
            pass
        worker = HandWorker(api, jobs[0]["id"], "chat")
        claim = worker.claim("llm")
        worker.complete(claim, result={"text": '{"city": "Oslo"}'}, finish_reason="stop")
        response = parsing.result(LATE_S)
    assert response.output_parsed == Place(city="Oslo")
    assert claim.request["parameters"]["llm"]["response_format"]["json_schema"]["name"] == "Place"
    shown = response.text.format.to_dict()
    assert (shown["type"], shown["name"], shown["strict"]) == ("json_schema", "Place", True)
    assert shown["schema"]["properties"].keys() == {"city"}


def test_logprobs_come_with_the_end_of_the_text(api: ApiServer, stock: Stock) -> None:
    response = asked(stock, include=["message.output_text.logprobs"], top_logprobs=0)
    complete(api, response, text="It", logprobs={"llm": [TOKEN]})
    events = {event.type: event for event in stock.client.responses.retrieve(response.id, stream=True)}
    [said] = events["response.output_text.done"].logprobs
    assert (said.token, said.logprob) == ("It", -0.5)
    [shown] = events["response.completed"].response.output[0].content[0].logprobs
    assert shown.to_dict() == TOKEN


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools.1.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "clock"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 7}}}}, "text.format.schema"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"input": "word " * 5000}, "input"),
    ],
)
def test_what_the_model_does_not_take_is_named(stock: Stock, more: dict[str, Any], param: str) -> None:
    error = stock.error(openai.BadRequestError, lambda: asked(stock, **more))
    assert error.param is not None
    assert error.param.startswith(param)
