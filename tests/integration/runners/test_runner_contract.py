"""Each runner of ours keeps the contract of all runners."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from safetensors.torch import load_file

from examples.tinted.tinted.tiny_checkpoint import build_tiny_checkpoint as build_tiny_tinted
from omni_jobs.pipelines.declarations import RUNNERS
from omni_jobs.pipelines.plugins import names
from omni_jobs.servers import Server
from tests.chaos.flooding_server import flood
from tests.integration.runners import codec_prompts
from tests.integration.runners.test_hibari import SENTENCES, packaged_voice, text_prompt
from tests.integration.runners.test_hibari import args as hibari_args
from tests.integration.runners.test_upscale import args as upscale_args
from tests.integration.runners.test_upscale import prompt as picture_prompt
from tests.integration.runners.test_upscale import scene
from tests.integration.runners.test_whisper import args as whisper_args
from tests.integration.runners.test_whisper import packaged_model
from tests.oracles.tinted import EXAMPLE
from tests.processes import named, one_process_an_engine, until_gone
from tests.remote_stages import engine_settings
from tests.remote_stages import prompt as remote_prompt
from tests.runner_contract import LATE_S, Subject, check, raising_threads
from tests.services.openai_server import Connection, OpenAIServer, Request, completion, piece
from tests.spoken import speech
from tests.unruly import family as unruly
from workers.models.hibari.hibari_runner import HibariRunner
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.upscale.upscale_runner import UpscaleRunner
from workers.models.whisper.parameters import WhisperParameters
from workers.models.whisper.whisper_prompt import Recording, WhisperPrompt
from workers.models.whisper.whisper_runner import WhisperRunner
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.engine_settings import ArEngine
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.runners.diffusion.engine_process import EngineProcess
from workers.runners.echo.answer import AnswerPrompt, BroughtSound
from workers.runners.echo.bars import BarsPrompt, MovingBarsPrompt
from workers.runners.echo.declaration import ECHO
from workers.runners.echo.echo_processor import EchoPrompt
from workers.runners.echo.echo_runner import EchoRunner
from workers.runners.echo.parameters import AnswerParameters, EchoParameters
from workers.runners.echo.tone import TonePrompt
from workers.runners.pooling.engine_settings import PoolingEngine
from workers.runners.pooling.parameters import PoolingParameters
from workers.runners.pooling.pooling_runner import PoolingRunner
from workers.runners.pooling.prompt import PoolingPrompt
from workers.runners.remote.remote_runner import RemoteRunner
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig

ROOT = Path(__file__).parents[3]
COVERED = {"ar", "diffusion", "echo", "hibari", "pooling", "remote", "upscale", "whisper"}


@contextmanager
def hanging_threads(runner: Any) -> Iterator[None]:
    """Calls of the model do not end before the context does."""
    may_end = threading.Event()
    run = runner._threads.run

    def hang(call: Callable[[], Any]) -> Any:
        may_end.wait(LATE_S)
        return call()

    with patch.object(runner._threads, "run", lambda call: run(lambda: hang(call))):
        try:
            yield
        finally:
            may_end.set()


@contextmanager
def stopped_engine(runner: Any) -> Iterator[None]:
    """The engine's process is stopped."""
    pid = runner.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it was killed meanwhile
            os.kill(pid, signal.SIGCONT)


def kill_engine(runner: Any) -> None:
    os.kill(runner.pid, signal.SIGKILL)


@contextmanager
def no_engine_left() -> Iterator[None]:
    """None of vLLM's engines that started inside outlives the context."""
    before = named(os.getpid(), b"EngineCore")
    yield
    until_gone([pid for pid in named(os.getpid(), b"EngineCore") if pid not in before], LATE_S)


class Unruly:
    """The family of ``tests.unruly``: its checkpoint, and what a test asks of its model."""

    def __init__(self, checkpoint: Path, directory: Path) -> None:
        self.checkpoint = checkpoint
        self.directory = directory
        self._held = ExitStack()

    def hang(self, runner: Any) -> AbstractContextManager[None]:
        """The model's forward does not return."""
        assert named(os.getpid(), b"EngineCore")
        return unruly.misbehaving(self.directory, "forward", unruly.HANG)

    def escape(self, method: str) -> Callable[[Any, type[BaseException]], AbstractContextManager[None]]:
        """The contexts in which this method of one request raises an exception."""
        return lambda runner, error: unruly.misbehaving(self.directory, method, error.__name__)

    def die(self, error: type[BaseException]) -> Callable[[Any], None]:
        """What lets the model's forward raise this from here on."""
        enter = self._held.enter_context
        return lambda runner: enter(unruly.misbehaving(self.directory, "forward", error.__name__))

    def close(self) -> None:
        self._held.close()


@pytest.fixture(scope="module")
def tinted_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_tinted(tmp_path_factory.mktemp("tinted"))


@pytest.fixture
def unruly_family(tinted_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unruly]:
    """The family is installed, for this process and those of vLLM."""
    paths = [str(unruly.installed(tmp_path / "site")), str(EXAMPLE)]
    for path in paths:
        monkeypatch.syspath_prepend(path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, str(ROOT)]))
    monkeypatch.setenv(unruly.DIRECTORY, str(tmp_path))
    installed = Unruly(tinted_checkpoint, tmp_path)
    with closing(installed), no_engine_left(), one_process_an_engine():
        yield installed
    for name in [name for name in sys.modules if name.partition(".")[0] == "tinted"]:
        del sys.modules[name]


def echo(text: str = "hi", **parameters: float) -> EchoPrompt:
    return EchoPrompt(text, 0, EchoParameters.model_validate(parameters), 1, True)


def test_every_runner_of_ours_is_covered() -> None:
    assert set(names(RUNNERS)) == COVERED


async def test_echo() -> None:
    args = OmniEngineArgs("first", None, "cpu", None, 4)
    foreign = codec_prompts.prompt()
    await check(
        Subject(
            lambda: EchoRunner(args),
            lambda number: echo(str(number), payload_bytes=100, delay_s=0.01),
            echo(delay_s=30),
            foreign,
        )
    )


SOUND = BroughtSound(0, np.sin(np.arange(16_000, dtype=np.float32)))
CARD = BarsPrompt("hi", 1, 64, 64, (), 2, 0.0, True)
ECHOES = {
    "answer": (
        lambda number: AnswerPrompt("first", str(number), (SOUND,), AnswerParameters(words=True)),
        AnswerPrompt("first", "many words " * 500, (), AnswerParameters(delay_s=30)),
    ),
    "tone": (lambda number: TonePrompt(0.1 + number, 440.0, 0.0), TonePrompt(10.0, 440.0, 30.0)),
    "bars": (lambda number: CARD._replace(seed=number), CARD._replace(delay_s=30.0, steps=200)),
    "moving_bars": (
        lambda number: MovingBarsPrompt(CARD._replace(seed=number), 4, 2),
        MovingBarsPrompt(CARD._replace(delay_s=30.0), 4, 2),
    ),
}  # by the input processor


@pytest.mark.parametrize("processor", ECHOES)
async def test_echoes_of_media(processor: str) -> None:
    args = OmniEngineArgs("first", None, "cpu", None, 4)
    short, long = ECHOES[processor]
    await check(Subject(lambda: EchoRunner(args), short, long, codec_prompts.prompt(), hang=hanging_threads))


def test_every_processor_of_echo_is_covered() -> None:
    assert {"echo", *ECHOES} == set(ECHO.processors)


async def test_diffusion(tiny_checkpoint: Path, tmp_path: Path) -> None:
    args = replace(codec_prompts.args(tiny_checkpoint), spool_dir=tmp_path)
    await check(
        Subject(
            lambda: EngineProcess(args),
            lambda number: codec_prompts.prompt(5 + number),
            codec_prompts.prompt(60, parameters=OdeParameters(steps=1000)),
            echo(),
            slots=8,
            exact=False,
            hang=stopped_engine,
            killed=True,
            die=kill_engine,
        )
    )


async def test_ar(unruly_family: Unruly) -> None:
    tints = load_file(unruly_family.checkpoint / "tints" / "tints.safetensors")
    information = {"tint": tints["warm"], "drift": tints["drift"]}
    engine = {
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": 4,
        "max_model_len": 4096,
    }
    model = OmniModelConfig(unruly_family.checkpoint, "unruly", None)
    settings = ArEngine.model_validate(engine)
    spool = unruly_family.directory / "spool"
    args = OmniEngineArgs("answer", model, "cpu", None, 4, settings, spool_dir=spool)

    def prompt(length: int, tokens: int) -> OmniTokensPrompt:
        parameters = ArParameters(temperature=0, max_tokens=tokens, ignore_eos=True)
        token_ids = [n * 7 % 250 for n in range(length)]
        return OmniTokensPrompt(token_ids, information, parameters=parameters, seed=1, capture=True)

    await check(
        Subject(
            lambda: ARRunner(args),
            lambda number: prompt(unruly.CULPRIT + number, 8),
            prompt(unruly.CULPRIT - 1, 2000),
            echo(),
            exact=False,
            hang=unruly_family.hang,
            killed=True,
            escapes=[unruly_family.escape("load_information"), unruly_family.escape("named_outputs")],
            die=unruly_family.die(SystemExit),
        )
    )


@pytest.mark.long  # what it shares with ar, test_ar shows; what it does not, test_pooling.py
async def test_pooling(unruly_family: Unruly) -> None:
    context = unruly.CONTEXT  # a prompt of this length, with its negative, takes the model a second
    engine = {
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": 4,
        "max_model_len": context,
        "max_num_batched_tokens": context,
    }
    model = OmniModelConfig(unruly_family.checkpoint, "unruly", "encoder")
    args = OmniEngineArgs("encode", model, "cpu", None, 4, PoolingEngine.model_validate(engine))

    def prompt(tokens: int) -> PoolingPrompt:
        token_ids = [n * 7 % 250 for n in range(tokens)]
        return PoolingPrompt(token_ids, PoolingParameters(), 0, negative_token_ids=token_ids[::-1])

    await check(
        Subject(
            lambda: PoolingRunner(args),
            lambda number: prompt(5 + number),
            prompt(context),
            echo(),
            exact=False,
            hang=unruly_family.hang,
            killed=True,
            die=unruly_family.die(KeyboardInterrupt),
        )
    )


async def test_whisper() -> None:
    sentence = speech(SENTENCES[0])
    long = [sentence for _ in range(60)]  # three minutes

    def prompt(*sounds: object) -> WhisperPrompt:
        recordings = [Recording(sound, number, f"messages.0.content.{number}") for number, sound in enumerate(sounds)]  # type: ignore[arg-type]
        return WhisperPrompt(recordings, WhisperParameters(), 0)

    await check(
        Subject(
            lambda: WhisperRunner(whisper_args(packaged_model())),
            lambda number: prompt(speech(SENTENCES[0], seed=number)),
            prompt(*long),
            echo(),
            hang=hanging_threads,
            escapes=[raising_threads],
        )
    )


async def test_hibari() -> None:
    args = hibari_args("acoustic", directory=packaged_voice(), max_speech_s=3600)
    await check(
        Subject(
            lambda: HibariRunner(args),
            lambda number: text_prompt(f"{SENTENCES[0]} {'And so on. ' * number}"),
            text_prompt(f"{SENTENCES[0]} " * 400),
            echo(),
            hang=hanging_threads,
            escapes=[raising_threads],
        )
    )


async def test_upscale() -> None:
    await check(
        Subject(
            lambda: UpscaleRunner(upscale_args()),
            lambda number: picture_prompt(scene(32, 28 + number)),
            picture_prompt(scene(1024, 1536)),
            echo(),
            hang=hanging_threads,
            escapes=[raising_threads],
        )
    )


async def test_remote() -> None:
    async def answer(request: Request, connection: Connection) -> None:
        text = request.json["messages"][0]["content"]
        if "without end" in text:
            await flood("pieces", connection)
        if "at length" not in text:
            await completion("Hello", " there")(request, connection)
            return
        await connection.head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        gone = asyncio.create_task(connection.closed())
        while not gone.done():
            await connection.chunk(b"data: " + json.dumps(piece("word ")).encode() + b"\n\n")
            await asyncio.wait({gone}, timeout=0.05)

    async with OpenAIServer() as server:
        server.answers["POST /v1/chat/completions"] = [answer]
        settings = engine_settings(max_answer_bytes=1 << 20)
        args = OmniEngineArgs("llm", None, "auto", None, 4, settings, servers={"local": Server(url=server.url)})
        await check(
            Subject(
                lambda: RemoteRunner(args),
                lambda number: remote_prompt(text=f"Say hi, {number}."),
                remote_prompt(text="Speak at length."),
                echo(),
                flood=remote_prompt(text="Speak without end."),
            )
        )
