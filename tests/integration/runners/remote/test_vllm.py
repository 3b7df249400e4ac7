"""A remote stage before vLLM's own OpenAI server: the real other side."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr

from omni_jobs.errors import ConfigError, InvalidRequest, ModelError, RemoteUnavailable
from omni_jobs.servers import Server
from tests.remote_stages import Args, Recorded, engine_settings, prompt
from tests.services.vllm_server import KEY, MODEL, SEATS, VllmServer
from workers.runners.remote.remote_runner import RemoteRunner
from workers.stages.types import Progress

LONG = {"temperature": 0.0, "max_tokens": 900, "ignore_eos": True}
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


@asynccontextmanager
async def runner_of(
    server: VllmServer, endpoint: str = "chat", key: str = KEY, **settings: Any
) -> AsyncIterator[RemoteRunner]:
    engine = engine_settings(endpoint, **{"model": MODEL, **settings})
    runner = RemoteRunner(Args(engine, {"local": Server(url=server.url, key=SecretStr(key))}))
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
    """Each run is cancelled by its own first words. If vLLM went on, it would make all of the tokens."""
    before = vllm_server.metric("vllm:generation_tokens_total")
    runs: list[asyncio.Task[Any]] = []
    async with runner_of(vllm_server) as runner:
        for number in range(SEATS):

            def cancel(progress: Progress, number: int = number) -> None:
                if progress.text:
                    runs[number].cancel()

            runs.append(asyncio.create_task(runner.run(prompt(parameters=LONG), cancel)))
        await asyncio.wait(runs)
        assert all(run.cancelled() for run in runs)
        await running(vllm_server, lambda count: count == 0)
        made = vllm_server.metric("vllm:generation_tokens_total") - before
        assert made < 0.8 * SEATS * LONG["max_tokens"]
        assert (await runner.run(prompt(parameters=GREEDY), Recorded())).finish_reason == "length"


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


async def test_a_server_that_is_killed_is_waited_for(vllm_server: VllmServer) -> None:
    """Killed in the middle of four answers. One run is not patient, and fails; the others end, as if nothing was."""
    progress = [Recorded() for _ in range(3)]

    def freeze() -> None:
        until = time.monotonic() + 20
        while requests(vllm_server) < 4 and time.monotonic() < until:
            time.sleep(0.01)  # on a thread, because the event loop may lag behind the server
        vllm_server.freeze()  # at once, so that no answer is whole

    async with runner_of(vllm_server, tries=2, wait_s=200) as patient, runner_of(vllm_server) as impatient:
        expected = await patient.run(prompt(parameters=LONG), Recorded())
        runs = [asyncio.create_task(patient.run(prompt(parameters=LONG), each)) for each in progress]
        lost = asyncio.create_task(impatient.run(prompt(parameters=LONG), Recorded()))
        await asyncio.to_thread(freeze)
        await asyncio.to_thread(vllm_server.kill)
        with pytest.raises(RemoteUnavailable, match="connection") as caught:
            await lost
        assert caught.value.retryable
        with pytest.raises(RemoteUnavailable, match="no connection"):
            await impatient.run(prompt(), Recorded())
        assert patient.healthy
        assert impatient.healthy
        vllm_server.start()
        await asyncio.to_thread(vllm_server.wait)
        outputs = await asyncio.gather(*runs)
        assert (await impatient.run(prompt(parameters=GREEDY), Recorded())).finish_reason == "length"
    assert {(output.text, output.finish_reason) for output in outputs} == {(expected.text, "length")}
    assert all(each.waits >= 1 for each in progress)
