"""The remote runner against OpenAI's own client, before the same server: vLLM's, with SmolLM2-135M on the CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.remote --json FILE [--jobs 64] [--runs 5] [--model PATH] [--quick]

The same chat completions of about 60 tokens, 64 new tokens each, greedy, all at once, from the first request to the
last answer. The runner streams them, as a worker does, so that jobs have progress; the client streams them as well.
Beside that both ask for them whole, which a stage config may choose. "Through the queue" is the whole platform with
such a stage: HTTP, SQL, broker, a worker, storage and back, from the submit of all in one call to the last result. The
sides take turns. The processor time is this process's, and not the server's or the platform's. Without --model
SmolLM2-135M-Instruct is fetched once; --quick uses a tiny model with random weights.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import openai
from httpx2 import Limits
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import SecretStr
from rich.console import Console
from rich.progress import track

from benchmarks.chat import NEW_TOKENS, WORDS, chat_arguments, chat_checkpoint
from benchmarks.figures import Figure, figure, report
from benchmarks.main_job import Work, through_stack
from omni_jobs.client import Client
from omni_jobs.servers import Server
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from tests.services.vllm_server import KEY, MODEL, VllmServer
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.parameters import ChatParameters
from workers.runners.remote.prompt import RemotePrompt
from workers.runners.remote.remote_runner import RemoteRunner
from workers.stages.engine_args import OmniEngineArgs

Side = Callable[[Sequence[str]], Awaitable[None]]
"""Has all these texts answered at once, each with ``NEW_TOKENS`` tokens, and checks the answers."""

RUNNER, RUNNER_WHOLE = "the remote runner", "the remote runner, whole"
QUEUE, QUEUE_WHOLE = "through the queue", "through the queue, whole"
STREAMED, WHOLE = "the stock client, streaming", "the stock client, whole"
_TIME_LIMIT_S = 1800.0
# openai's own, but for the time that an idle connection is kept: uvicorn closes one after 5 s, as openai does, so a
# request may go out on a connection that is being closed, and this client sends nothing twice.
_LIMITS = Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=2.0)


def main() -> None:
    arguments = chat_arguments(__doc__, "jobs", 64)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    texts = [f"Day {number}. {WORDS}Tell it." for number in range(arguments.jobs)]
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory:
        model = chat_checkpoint(arguments, Path(directory))
        server = VllmServer(model, Path(directory) / "log", seats=arguments.jobs)
        try:
            with Console().status("starting vLLM's server"):
                server.start()
                server.wait()
            with _platform(server, Path(directory), arguments.jobs) as platform:
                times = asyncio.run(_measure(server, platform, texts, arguments.runs))
        finally:
            server.kill()
    report(_figures(times, arguments.jobs), arguments.json)


_STAGE_CONFIG = """
name: {name}
version: "1"
stages:
  llm:
    kind: remote
    processor: remote_chat
    produces: text
    slots: {slots}
    engine: {{server: vllm, endpoint: chat, model: {model}, stream: {stream}}}
outputs:
  text: {{stage: llm}}
"""


@contextmanager
def _platform(server: VllmServer, directory: Path, jobs: int) -> Iterator[Client]:
    """The platform with a remote stage that streams, and one that asks for answers whole."""
    configs = directory / "stage_configs"
    configs.mkdir()
    for stream in (True, False):
        name = _pipeline(stream=stream)
        text = _STAGE_CONFIG.format(name=name, slots=jobs, model=MODEL, stream=str(stream).lower())
        (configs / f"{name}.yaml").write_text(text, encoding="utf-8")
    settings = Settings(
        data_dir=directory / "data",
        stage_configs=configs,
        servers={"vllm": Server(url=server.url, key=SecretStr(KEY))},
    )
    pipelines = [_pipeline(stream=stream) for stream in (True, False)]
    with EmbeddedStack(settings, pipelines=pipelines) as stack, Client(stack.url) as client:
        yield client


def _pipeline(*, stream: bool) -> str:
    return "remote_chat" if stream else "remote_chat_whole"


def _queue(client: Client, *, stream: bool) -> Side:
    """Return the platform's side, with the same requests as jobs."""
    greedy = {"temperature": 0.0, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    work = Work(pipeline=_pipeline(stream=stream), modalities=("text",), artifacts=())

    async def all_of(texts: Sequence[str]) -> None:
        requests = [{"messages": [{"role": "user", "content": text}], "stages": {"llm": greedy}} for text in texts]
        for job in await asyncio.to_thread(through_stack, client, work, requests):
            _check((job.result or {})["usage"]["llm"]["completion_tokens"])

    return all_of


class Run(NamedTuple):
    """The seconds that one side took for all texts: by the clock, and of processor time in this process."""

    wall_s: float
    cpu_s: float


async def _measure(server: VllmServer, platform: Client, texts: Sequence[str], runs: int) -> Mapping[str, list[Run]]:
    """Return each side's runs, by its name."""
    async with AsyncExitStack() as held:
        sides: dict[str, Side] = {
            RUNNER: await _runner(server, len(texts), held, stream=True),
            STREAMED: await _client(server, held, stream=True),
            QUEUE: _queue(platform, stream=True),
            RUNNER_WHOLE: await _runner(server, len(texts), held, stream=False),
            WHOLE: await _client(server, held, stream=False),
            QUEUE_WHOLE: _queue(platform, stream=False),
        }
        times: dict[str, list[Run]] = {name: [] for name in sides}
        for turn in track(range(runs + 1), description="alternating"):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                begin, cpu_begin = time.perf_counter(), time.process_time()
                await asyncio.wait_for(sides[name](texts), _TIME_LIMIT_S)
                if turn:  # the first warms all
                    times[name].append(Run(time.perf_counter() - begin, time.process_time() - cpu_begin))
    return times


async def _runner(server: VllmServer, jobs: int, held: AsyncExitStack, *, stream: bool) -> Side:
    """Return our side: a remote stage's runner, as a worker has it."""
    engine = RemoteEngine(server="vllm", endpoint="chat", model=MODEL, send_seed=False, stream=stream, extra_body={})
    servers = {"vllm": Server(url=server.url, key=SecretStr(KEY))}
    runner = RemoteRunner(OmniEngineArgs("llm", None, "cpu", None, jobs, engine, servers=servers))
    await runner.start()
    held.push_async_callback(runner.close)
    parameters = ChatParameters(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)

    async def one(text: str) -> None:
        prompt = RemotePrompt(parameters=parameters, seed=0, messages=[{"role": "user", "content": text}])
        output = await runner.run(prompt, lambda progress: None)
        _check(None if output.usage is None else output.usage["completion_tokens"])

    return _at_once(one)


async def _client(server: VllmServer, held: AsyncExitStack, *, stream: bool) -> Side:
    """Return the stock client's side, with the same requests."""
    http = DefaultAsyncHttpxClient(limits=_LIMITS)
    client = await held.enter_async_context(
        AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0, http_client=http)
    )

    async def one(text: str) -> None:
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0.0,
            "max_tokens": NEW_TOKENS,
            "extra_body": {"ignore_eos": True},
        }
        if not stream:
            whole = await client.chat.completions.create(**body)
            _check(whole.usage and whole.usage.completion_tokens)
            return
        usage = None
        async for chunk in await client.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
        _check(usage and usage.completion_tokens)

    return _at_once(one)


def _at_once(one: Callable[[str], Awaitable[None]]) -> Side:
    async def all_of(texts: Sequence[str]) -> None:
        await asyncio.gather(*(one(text) for text in texts))

    return all_of


def _check(tokens: int | None) -> None:
    if tokens != NEW_TOKENS:
        raise SystemExit(f"an answer has {tokens} tokens, not {NEW_TOKENS}")


def _figures(times: Mapping[str, Sequence[Run]], jobs: int) -> list[Figure]:
    tokens = jobs * NEW_TOKENS
    each = times.items()
    return [
        *(figure(f"{jobs} chats, {name}", "tokens/s", [tokens / run.wall_s for run in runs]) for name, runs in each),
        *(
            figure(f"processor time, {name}", "µs/token", [run.cpu_s * 1e6 / tokens for run in runs])
            for name, runs in each
        ),
        _ratio(f"the remote runner / openai {openai.__version__}, streaming", times[STREAMED], times[RUNNER], 0.95),
        _ratio(f"the remote runner / openai {openai.__version__}, whole", times[WHOLE], times[RUNNER_WHOLE]),
        _ratio(f"through the queue / openai {openai.__version__}, streaming", times[STREAMED], times[QUEUE], 0.95),
        _ratio(f"through the queue / openai {openai.__version__}, whole", times[WHOLE], times[QUEUE_WHOLE], 0.95),
        _ratio("the remote runner, streaming / whole", times[RUNNER_WHOLE], times[RUNNER]),
    ]


def _ratio(name: str, theirs: Sequence[Run], ours: Sequence[Run], at_least: float | None = None) -> Figure:
    ratios = [other.wall_s / own.wall_s for other, own in zip(theirs, ours, strict=True)]
    return figure(name, "×", ratios, at_least=at_least)


if __name__ == "__main__":
    main()
