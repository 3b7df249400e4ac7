"""A remote stage before vLLM's own OpenAI server: the real other side."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from pydantic import SecretStr

from omni_jobs.client import Client
from omni_jobs.errors import ConfigError, InvalidRequest, ModelError
from omni_jobs.servers import Server
from omni_jobs.states import JobState
from omni_jobs.views import JobView
from tests.integration.openai.stock import Stock, stock_client
from tests.processes import named, until_gone
from tests.remote_stages import Recorded, args, engine_settings, prompt
from tests.services.vllm_server import KEY, MODEL, SEATS, VllmServer
from workers.runners.remote.remote_runner import RemoteRunner
from workers.stages.types import Progress

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHOWN = README.partition("## Before a server that you run already")[2].partition("\n## ")[0]
LONG = {"temperature": 0.0, "max_tokens": 900, "ignore_eos": True}
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


@asynccontextmanager
async def runner_of(
    server: VllmServer, endpoint: str = "chat", key: str = KEY, **settings: Any
) -> AsyncIterator[RemoteRunner]:
    engine = engine_settings(endpoint, **{"model": MODEL, **settings})
    runner = RemoteRunner(args(engine, {"local": Server(url=server.url, key=SecretStr(key))}))
    await runner.start()
    try:
        yield runner
    finally:
        await runner.close()


async def running(server: VllmServer, becomes: Callable[[float], bool]) -> None:
    """Wait until vLLM says that as many requests run or wait as ``becomes`` wants."""
    async with asyncio.timeout(20):
        while not becomes(await asyncio.to_thread(requests, server)):
            await asyncio.sleep(0.02)


def requests(server: VllmServer) -> float:
    return server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting")


async def test_the_text_is_the_same_in_pieces_and_whole(vllm_server: VllmServer) -> None:
    seen = Recorded()
    async with runner_of(vllm_server) as streamed, runner_of(vllm_server, stream=False) as whole:
        first = await streamed.run(prompt(parameters=GREEDY), seen)
        second = await whole.run(prompt(parameters=GREEDY), Recorded())
    assert first == second
    assert first.finish_reason == "length"
    assert first.usage is not None
    assert first.usage["completion_tokens"] == 24
    assert first.usage["prompt_tokens"] > 10
    assert first.text
    texts = [each.text for each in seen if each.text]
    assert texts
    assert all(first.text.startswith(text) for text in texts)
    assert [each.total for each in seen] == [24] * len(seen)
    assert [each.done for each in seen] == sorted(each.done for each in seen)


async def test_the_seed_decides(vllm_server: VllmServer) -> None:
    hot = {**GREEDY, "temperature": 1.5}
    async with runner_of(vllm_server) as runner:
        same = [await runner.run(prompt(parameters=hot), Recorded()) for _ in range(2)]
        other = await runner.run(prompt(parameters=hot, seed=(1 << 63) - 9), Recorded())
    assert same[0].text == same[1].text != other.text


async def test_a_response_is_the_same_in_pieces_and_whole(vllm_server: VllmServer) -> None:
    short = {"temperature": 0.0, "max_tokens": 12}
    async with (
        runner_of(vllm_server, "responses") as streamed,
        runner_of(vllm_server, "responses", stream=False) as whole,
    ):
        first = await streamed.run(prompt("responses", parameters=short), Recorded())
        second = await whole.run(prompt("responses", parameters=short), Recorded())
    assert first == second
    assert first.text
    assert first.finish_reason == "length"
    assert first.usage is not None
    assert first.usage["completion_tokens"] == 12


async def test_as_many_at_once_as_slots(vllm_server: VllmServer) -> None:
    async with runner_of(vllm_server) as runner:
        asked = [prompt(text=f"Day {day}.", parameters=GREEDY) for day in range(3 * SEATS)]
        together = await asyncio.gather(*(runner.run(each, Recorded()) for each in asked))
        alone = await runner.run(asked[0], Recorded())
    assert {output.usage and output.usage["completion_tokens"] for output in together} == {24}
    assert together[0].text == alone.text


async def test_a_cancel_frees_its_seat(vllm_server: VllmServer) -> None:
    """Each run is cancelled by its own first words. If vLLM went on, it would make all of the tokens every time."""
    all_tokens = SEATS * LONG["max_tokens"]
    async with runner_of(vllm_server) as runner:
        for _ in range(8):  # on a busy machine the tiny model may be done before its first words are read
            made = await _tokens_made_in_spite_of_cancels(runner, vllm_server)
            if made < 0.8 * all_tokens:
                break
        assert made < 0.8 * all_tokens
        assert (await runner.run(prompt(parameters=GREEDY), Recorded())).finish_reason == "length"


async def _tokens_made_in_spite_of_cancels(runner: RemoteRunner, server: VllmServer) -> float:
    before = server.metric("vllm:generation_tokens_total")
    runs: list[asyncio.Task[Any]] = []
    for number in range(SEATS):

        def cancel(progress: Progress, number: int = number) -> None:
            if progress.text:
                runs[number].cancel()

        runs.append(asyncio.create_task(runner.run(prompt(parameters=LONG), cancel)))
    await asyncio.wait(runs)
    assert all(run.cancelled() for run in runs)
    await running(server, lambda count: count == 0)
    return server.metric("vllm:generation_tokens_total") - before


async def test_what_it_refuses_is_told(vllm_server: VllmServer) -> None:
    async with runner_of(vllm_server) as runner:
        with pytest.raises((InvalidRequest, ModelError), match=r"context|maximum") as caught:
            await runner.run(prompt(text="long " * 2000), Recorded())
        assert not caught.value.retryable
    async with runner_of(vllm_server, model="another") as runner:
        with pytest.raises(ModelError, match="another"):
            await runner.run(prompt(), Recorded())


async def test_a_wrong_key_is_told_at_the_start(vllm_server: VllmServer) -> None:
    with pytest.raises(ConfigError, match="401"):
        async with runner_of(vllm_server, key="sk-wrong"):
            pass


# README's pipeline and command, with this server's address.


@pytest.fixture
def remote_chat(vllm_server: VllmServer, tmp_path: Path) -> Iterator[tuple[Client, int]]:
    """What README shows, started in a directory of its own: a client of it, and the stack's process."""
    (command,) = re.findall(r"```bash\n(.*?)```", SHOWN, re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", SHOWN, re.DOTALL)
    (tmp_path / "stage_configs").mkdir()
    (tmp_path / "stage_configs" / "remote_chat.yaml").write_text(config.replace("NAME", MODEL), encoding="utf-8")
    shown = '"http://127.0.0.1:8001/v1"'
    assert shown in command
    command = command.strip().replace(shown, f'"{vllm_server.url}", "key": "{KEY}"')
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(
        ["bash", "-c", f"{command} --data-dir data --port 0"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            (url,) = re.findall(r"is up at (http://[\w.:]+)", process.stdout.readline())
            with Client(url) as client:
                yield client, process.pid
        finally:
            for pid in (*named(process.pid, b" up "), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_job_ends_once_whoever_is_killed(vllm_server: VllmServer, remote_chat: tuple[Client, int]) -> None:
    """kill -9 of the worker and of the server, each with answers under way: the jobs end once, as if nothing was."""
    client, stack = remote_chat
    bodies = [
        {
            "model": "remote_chat",
            "messages": [{"role": "user", "content": f"Story {number}."}],
            "stages": {"llm": LONG | {"max_tokens": 900 - 20 * number}},
        }
        for number in range(3)
    ]
    expected = [_completed(client, client.submit(body).id).result for body in bodies]
    jobs = [client.submit(bodies[number % 3]).id for number in range(4 * SEATS)]

    _until_busy(vllm_server)
    (worker,) = named(stack, b" remote_chat.llm")
    os.kill(worker, signal.SIGKILL)
    until_gone([worker], 30)
    # Its successor has taken what it held, perhaps before the server noticed that nobody listens to the first answers.
    _until(lambda: any(client.get(job_id).stages[0].attempt == 2 for job_id in jobs))
    _until_busy(vllm_server)
    vllm_server.freeze()  # with no answer whole
    vllm_server.kill()
    vllm_server.start()
    vllm_server.wait()

    attempts = []
    for number, job_id in enumerate(jobs):
        job = _completed(client, job_id)
        assert _begins_as(job.result, expected[number % 3])
        assert [event.type for event in client.events(job_id)] == ["job.completed"]
        assert {error.code for error in job.stages[0].errors} <= {"worker_lost"}
        attempts.append(job.stages[0].attempt)
    assert max(attempts) == 2  # the dead server was nobody's failure
    (successor,) = named(stack, b" remote_chat.llm")
    assert successor != worker


def _begins_as(result: Mapping[str, Any] | None, expected: Mapping[str, Any] | None) -> bool:
    """Return whether two results differ in nothing but the second half of their texts.

    There the server's own answers differ with the batch that they were in: of two tokens that are nearly as likely, a
    rounding decides, and what follows is another text. It showed at token 870 on one processor.
    """
    if result is None or expected is None:
        return False
    half = len(expected["text"]) // 2
    return result["text"][:half] == expected["text"][:half] and {**result, "text": ""} == {**expected, "text": ""}


def _completed(client: Client, job_id: str) -> JobView:
    job = client.wait(job_id, timeout=200)
    assert job.status is JobState.COMPLETED, job.error
    return job


def _until_busy(server: VllmServer) -> None:
    """Wait until answers are under way: the worker may keep one connection of an earlier answer, which is over."""
    _until(lambda: server.connections() >= 2)


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


# What stands behind the pipeline answers OpenAI's client through it as it does by itself.

FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {
            "type": "object",
            "properties": {"yes": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
            "required": ["yes", "size"],
            "additionalProperties": False,
        },
    },
}
ASKED: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 24},
    "stop": {"max_tokens": 60, "stop": ["a", "e"]},
    "logprobs": {"max_tokens": 6, "logprobs": True, "top_logprobs": 2},
    "form": {"max_tokens": 60, "response_format": FORM},
    "sampled": {"max_tokens": 24, "temperature": 1.2, "top_p": 0.9, "presence_penalty": 0.5},
}


def said(completion: Any) -> dict[str, Any]:
    """What a completion says, without what names it."""
    [choice] = completion.choices
    logprobs = choice.logprobs.content if choice.logprobs is not None else None
    tokens = [(each.token, [other.token for other in each.top_logprobs]) for each in logprobs or ()]
    usage = completion.usage.completion_tokens if completion.usage else None
    return {"text": choice.message.content, "tokens": tokens, "ended": choice.finish_reason, "usage": usage}


def streamed(stock: Stock, **asked: Any) -> Any:
    """A completion as the client puts its stream together."""
    state = ChatCompletionStreamState()
    for chunk in stock.client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot


def test_openai_s_client_gets_what_the_server_answers(vllm_server: VllmServer, remote_chat: tuple[Client, int]) -> None:
    client, _ = remote_chat
    http = openai.DefaultHttpxClient(trust_env=False)
    with (
        openai.OpenAI(base_url=vllm_server.url, api_key=KEY, http_client=http) as theirs,
        stock_client(client.base_url) as ours,
    ):
        messages: Any = [{"role": "user", "content": "Say it."}]
        for name, more in ASKED.items():
            asked = {"messages": messages, "temperature": 0.0, "seed": 11, **more}
            due = said(theirs.chat.completions.create(model=MODEL, **asked))
            assert said(ours.client.chat.completions.create(model="remote_chat", **asked)) == due, name
            assert said(streamed(ours, model="remote_chat", **asked)) == due, name
        long = "long " * 2000
        error = ours.error(openai.BadRequestError, lambda: ours.chat(long, model="remote_chat"))
        assert (error.code, "job_id" in error.body) == ("invalid_request", True)  # type: ignore[operator]
