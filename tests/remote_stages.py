"""Remote stages for tests: their runner, prompts and recorded progress."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic import SecretStr

from omni_jobs.fetch.guard import Guard
from omni_jobs.servers import Server
from workers.runners.remote.engine_settings import RemoteEngine
from workers.runners.remote.parameters import RemoteParameters
from workers.runners.remote.prompt import RemoteFile, RemotePrompt, RemoteRecording
from workers.runners.remote.remote_runner import RemoteRunner
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import Progress

KEY = "sk-hidden-word"


def args(engine: RemoteEngine, servers: Mapping[str, Server], slots: int = 64) -> OmniEngineArgs:
    """The arguments of a runner of a stage ``llm``."""
    return OmniEngineArgs("llm", None, "cpu", None, slots, engine, servers=servers)


def engine_settings(endpoint: str = "chat", **settings: Any) -> RemoteEngine:
    """Engine settings that lose no time in tests."""
    quick = {"connect_s": 2, "silence_s": 10, "wait_s": 0, "tries": 1, "poll_s": 0.01, "longest_pause_s": 0.2}
    return RemoteEngine.model_validate({"server": "local", "model": "smol", "endpoint": endpoint, **quick, **settings})


@asynccontextmanager
async def remote_runner(
    url: str, endpoint: str = "chat", guard: Guard | None = None, **settings: Any
) -> AsyncIterator[RemoteRunner]:
    """A started runner of a stage ``llm``, with a key. ``guard``: of links to other hosts; None: none is fetched."""
    server = Server(url=url, key=SecretStr(KEY))
    runner = RemoteRunner(replace(args(engine_settings(endpoint, **settings), {"local": server}), guard=guard))
    await runner.start()
    try:
        yield runner
    finally:
        await runner.close()


def prompt(runner_endpoint: str = "chat", text: str = "Say hi.", **fields: Any) -> RemotePrompt:
    """A prompt of an endpoint, with its parameters' defaults or ``parameters``."""
    given = RemoteParameters.model_validate(fields.pop("parameters", {}), context=engine_settings(runner_endpoint))
    messages = [{"role": "user", "content": text}] if runner_endpoint in ("chat", "responses") else ()
    return RemotePrompt(**{"parameters": given, "seed": 7, "messages": messages, "text": text, **fields})


def recording(media: int = 0, data: bytes = b"RIFF", **fields: Any) -> RemoteRecording:
    """A recording of a job to transcribe, as the only part of its message."""
    file = RemoteFile("audio.wav", "audio/wav", data)
    return RemoteRecording(file, media, **{"field": f"messages.0.content.{media}", **fields})


class Recorded(list[Progress]):
    """A progress sink that keeps what it gets."""

    def __call__(self, progress: Progress) -> None:
        self.append(progress)

    @property
    def waits(self) -> int:
        """How often the run said that it waits."""
        return sum(progress.waiting for progress in self)
