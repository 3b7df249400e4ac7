"""A server that is away, busy or forgetful: a stage run waits and tries again, and its time limit stands still."""

import asyncio
import time
from email.utils import formatdate

import pytest

from omni_jobs.errors import ConfigError, RemoteUnavailable
from tests.remote_stages import Recorded, args, engine_settings, prompt, remote_runner
from tests.services.openai_server import Answer, Connection, OpenAIServer, Request, completion, error_answer, reset
from workers.runners.remote.remote_runner import RemoteRunner

CHAT = "POST /v1/chat/completions"


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_a_busy_server_is_waited_for(openai_server: OpenAIServer, status: int) -> None:
    openai_server.answers[CHAT] = [error_answer(status)] * 2 + [completion("Hi")]
    seen = Recorded()
    async with remote_runner(openai_server.url, wait_s=20) as runner:
        assert (await runner.run(prompt(parameters={"max_tokens": 8}), seen)).text == "Hi"
    assert seen.waits == 2
    units = [each.unit for each in seen]
    assert units[:5] == ["tokens", "waiting", "tokens", "waiting", "tokens"]


@pytest.mark.parametrize(
    ("headers", "at_least_s"),
    [
        ({"Retry-After": "0.7"}, 0.7),
        ({"retry-after-ms": "700", "Retry-After": "9"}, 0.7),
        ({"Retry-After": "0"}, 0.5),
        ({"retry-after-ms": "0"}, 0.5),
        ({"Retry-After": "-inf"}, 0.25),
        ({"Retry-After": "inf"}, 0.25),
        ({"Retry-After": "1000000"}, 1.0),  # longest_pause_s
        ({"Retry-After": formatdate(time.time() + 100_000, usegmt=True)}, 1.0),
        ({"Retry-After": formatdate(0, usegmt=True)}, 0.5),
        ({"Retry-After": "soon"}, 0.25),
        ({"Retry-After": "NaN"}, 0.25),
        ({"Retry-After": "-5"}, 0.5),
    ],
)
async def test_the_wait_is_what_the_server_says(
    openai_server: OpenAIServer, headers: dict[str, str], at_least_s: float
) -> None:
    openai_server.answers[CHAT] = [Answer(b"", 429, headers=headers), completion("Hi")]
    async with remote_runner(openai_server.url, wait_s=20, longest_pause_s=1) as runner:
        began = time.monotonic()
        assert (await runner.run(prompt(), Recorded())).text == "Hi"
        assert at_least_s <= time.monotonic() - began < at_least_s + 5  # not the 9 s of the other header


async def test_a_busy_server_is_not_waited_for_for_ever(openai_server: OpenAIServer) -> None:
    openai_server.answers[CHAT] = [error_answer(503, "loading")]
    async with remote_runner(openai_server.url, wait_s=0.4) as runner:
        with pytest.raises(RemoteUnavailable, match="503: loading") as caught:
            await runner.run(prompt(), Recorded())
        assert runner.healthy
    assert caught.value.retryable


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_refusals_without_a_pause_come_to_an_end(openai_server: OpenAIServer, status: int) -> None:
    openai_server.answers[CHAT] = [Answer(b"", status, headers={"Retry-After": "0"})]
    async with remote_runner(openai_server.url, wait_s=2) as runner:
        with pytest.raises(RemoteUnavailable, match=str(status)):
            await asyncio.wait_for(runner.run(prompt(), Recorded()), 60)
    # At once, after 0.5 s, after 1 s more, and the last at 0.9 of what is left.
    assert 2 <= openai_server.paths().count("/v1/chat/completions") <= 4


async def test_the_time_of_refused_exchanges_is_waited_time(openai_server: OpenAIServer) -> None:
    """A server that takes long to say that it is busy is not asked for longer than one that says so at once."""

    async def late(request: Request, connection: Connection) -> None:
        await asyncio.sleep(0.4)
        await error_answer(429)(request, connection)

    openai_server.answers[CHAT] = [late]
    async with remote_runner(openai_server.url, wait_s=0.3) as runner:
        with pytest.raises(RemoteUnavailable, match="429"):
            await runner.run(prompt(), Recorded())
    assert openai_server.paths().count("/v1/chat/completions") == 1


@pytest.mark.parametrize("answer", [reset, Answer(b"", 500), Answer(b"", 504)])
async def test_a_lost_answer_is_asked_for_again(openai_server: OpenAIServer, answer: Answer) -> None:
    openai_server.answers[CHAT] = [answer, completion("Hi")]
    async with remote_runner(openai_server.url, tries=2, wait_s=20) as runner:
        assert (await runner.run(prompt(), Recorded())).text == "Hi"


async def test_answers_are_not_lost_for_ever(openai_server: OpenAIServer) -> None:
    """A request that kills its server kills it ``tries`` times."""
    openai_server.answers[CHAT] = [reset]
    async with remote_runner(openai_server.url, tries=3, wait_s=20) as runner:
        with pytest.raises(RemoteUnavailable, match="in 3 tries"):
            await runner.run(prompt(), Recorded())
    assert openai_server.paths().count("/v1/chat/completions") == 3


@pytest.mark.parametrize("status", [429, 502])
async def test_a_lost_answer_after_the_longest_pause_counts_as_any_other(
    openai_server: OpenAIServer, status: int
) -> None:
    """That pause takes nine tenths of ``wait_s``, and makes the next refusal the last, but not the next lost answer."""
    long = Answer(b"", status, headers={"Retry-After": "5"})
    openai_server.answers[CHAT] = [long, Answer(b"", 502), completion("Hi")]
    async with remote_runner(openai_server.url, tries=3, wait_s=5, longest_pause_s=6) as runner:
        assert (await runner.run(prompt(), Recorded())).text == "Hi"


async def test_a_server_that_died_is_waited_for_by_all(openai_server: OpenAIServer) -> None:
    together = asyncio.Barrier(9)

    async def silent(request: Request, connection: Connection) -> None:
        await together.wait()
        await connection.closed()

    openai_server.answers[CHAT] = [silent] * 8 + [completion("Hi")]
    progress = [Recorded() for _ in range(8)]
    async with remote_runner(openai_server.url, tries=2, wait_s=30) as runner:
        runs = [asyncio.create_task(runner.run(prompt(), each)) for each in progress]
        await together.wait()
        await openai_server.stop()
        while not all(each.waits for each in progress):
            await asyncio.sleep(0.01)
        await openai_server.start()
        assert {(await run).text for run in runs} == {"Hi"}
        assert runner.healthy


async def test_a_waiting_run_can_be_cancelled(openai_server: OpenAIServer) -> None:
    waiting = asyncio.Event()
    await openai_server.stop()
    async with remote_runner(openai_server.url, wait_s=60) as runner:
        run = asyncio.create_task(runner.run(prompt(), lambda each: waiting.set() if each.waiting else None))
        await waiting.wait()
        run.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await run


async def test_a_server_that_is_away_is_no_engine_that_is_dead(openai_server: OpenAIServer) -> None:
    await openai_server.stop()
    async with remote_runner(openai_server.url, wait_s=0.3) as runner:
        with pytest.raises(RemoteUnavailable, match="no connection"):
            await runner.run(prompt(), Recorded())
        assert runner.healthy


async def test_a_refused_key_is_told_at_the_start(openai_server: OpenAIServer) -> None:
    openai_server.answers["GET /v1/models"] = [error_answer(401)]
    with pytest.raises(ConfigError, match="401") as caught:
        async with remote_runner(openai_server.url):
            pass
    assert caught.value.field == "servers.local"


def test_an_unknown_server_is_told_before_the_start() -> None:
    with pytest.raises(ConfigError, match="no server 'local'") as caught:
        RemoteRunner(args(engine_settings(), {}))
    assert caught.value.field == "engine.server"
