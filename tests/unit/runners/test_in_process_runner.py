"""``InProcessRunner``: runners of a few lines keep the contract of all runners."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from unittest.mock import patch

import numpy as np
import pytest

from omni_jobs.errors import ConfigError, EngineDead, ModelError, OutOfMemory
from omni_jobs.pipelines.engine_settings import EngineSettings
from tests.runner_contract import LATE_S, Subject, check, quiet, raising_threads, started
from workers.runners.in_process_runner import InProcessRunner
from workers.runners.runner import ProgressSink, TellingRunner
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import OmniModelRunnerOutput, Progress

T = TypeVar("T")


@dataclass(frozen=True)
class Count:
    """Counts to a number, so many of them on a thread at once."""

    to: int
    at_once: int = 10


class CounterEngine(EngineSettings):
    first: int = 0


class Counter(InProcessRunner[Count, CounterEngine]):
    async def produce(self, prompt: Count, progress: ProgressSink) -> OmniModelRunnerOutput:
        numbers: list[int] = []
        for begin in range(0, prompt.to, prompt.at_once):
            progress(Progress(begin, prompt.to, "numbers"))
            numbers += await self.on_thread(lambda: counted(self.engine.first + begin, prompt))  # noqa: B023 awaited
        return OmniModelRunnerOutput(multimodal_outputs={"numbers": np.asarray(numbers)})


def counted(begin: int, prompt: Count) -> list[int]:
    threading.Event().wait(0.002)
    return list(range(begin, begin + prompt.at_once))


def args(engine: EngineSettings | None = None, slots: int = 4) -> OmniEngineArgs:
    return OmniEngineArgs("count", None, "cpu", None, slots, CounterEngine() if engine is None else engine)


@contextmanager
def hanging(runner: Any) -> Iterator[None]:
    may_end = threading.Event()

    def hang(begin: int, prompt: Count) -> list[int]:
        may_end.wait(LATE_S)
        return []

    with patch(f"{__name__}.counted", hang):
        try:
            yield
        finally:
            may_end.set()


@contextmanager
def raising_on_the_loop(runner: Any, error: type[BaseException]) -> Iterator[None]:
    async def produce(prompt: Count, progress: ProgressSink) -> OmniModelRunnerOutput:
        raise error

    if error is StopIteration:  # no coroutine can raise it
        yield
        return
    with patch.object(runner, "produce", produce):
        yield


async def test_a_runner_of_a_few_lines_keeps_the_contract() -> None:
    await check(
        Subject(
            lambda: Counter(args()),
            lambda number: Count(5 + number),
            Count(1_000_000),
            "no prompt of a counter",
            hang=hanging,
            escapes=[raising_threads],
        )
    )
    assert isinstance(Counter(args()), TellingRunner)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_what_escapes_on_the_event_loop_ends_its_run_alone(error: type[BaseException]) -> None:
    async with started(Subject(lambda: Counter(args()), Count, Count(1), "")) as runner:
        with raising_on_the_loop(runner, error), pytest.raises(ModelError, match=error.__name__):
            await runner.run(Count(1), quiet)
        (await runner.run(Count(1), quiet)).free()


def test_settings_of_another_runner_are_refused() -> None:
    with pytest.raises(ConfigError, match="settings of the class CounterEngine are due, not EngineSettings") as caught:
        Counter(args(EngineSettings()))
    assert (caught.value.field, caught.value.stage) == ("engine", "count")


async def test_a_prompt_of_another_runner_is_named() -> None:
    runner = Counter(args())
    with pytest.raises(ModelError, match="the stage takes Count, not str") as caught:
        await runner.run("count", quiet)
    assert (caught.value.field, caught.value.stage) == ("kind", "count")


async def test_before_its_start_it_takes_nothing() -> None:
    runner = Counter(args())
    assert not runner.healthy
    with pytest.raises(EngineDead):
        await runner.run(Count(1), quiet)
    await runner.close()


def test_a_runner_without_types_is_found_when_it_is_defined() -> None:
    with pytest.raises(TypeError, match=r"Untyped names no types: InProcessRunner\[PROMPT, ENGINE_SETTINGS\]"):

        class Untyped(InProcessRunner):  # type: ignore[type-arg]
            async def produce(self, prompt: object, progress: ProgressSink) -> OmniModelRunnerOutput:
                raise NotImplementedError


def test_types_beside_another_parameter_count_and_those_of_a_half_open_base_do_not() -> None:
    class Named(InProcessRunner[Count, CounterEngine], Generic[T]):
        async def produce(self, prompt: Count, progress: ProgressSink) -> OmniModelRunnerOutput:
            raise NotImplementedError

    assert Named(args()).engine == CounterEngine()

    class Half(InProcessRunner[T, CounterEngine]):
        pass

    with pytest.raises(TypeError, match="Whole names no types"):

        class Whole(Half[Count]):
            pass


async def test_the_model_is_freed_after_the_last_words_of_its_runs() -> None:
    order: list[str] = []

    class Last(Counter):
        async def produce(self, prompt: Count, progress: ProgressSink) -> OmniModelRunnerOutput:
            try:
                return await super().produce(prompt, progress)
            finally:
                await asyncio.sleep(0)
                order.append("last words")

        def free(self) -> None:
            order.append("free")

    runner = Last(args())
    await runner.start()
    with hanging(runner):
        run = asyncio.create_task(runner.run(Count(1), quiet))
        await asyncio.sleep(0.05)
    await runner.close()
    with pytest.raises(EngineDead):
        await run
    assert order == ["last words", "free"]


async def test_a_class_below_takes_the_same_types() -> None:
    class Below(Counter):
        def threads(self) -> int:
            return 1

    async with started(Subject(lambda: Below(args()), Count, Count(1), "")) as runner:
        output = await runner.run(Count(3, at_once=3), quiet)
    assert output.multimodal_outputs["numbers"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ConfigError("no file"), ConfigError), (OutOfMemory(), OutOfMemory), (SystemExit(), ModelError)],
)
async def test_a_load_that_fails_leaves_nothing_behind(error: BaseException, raised: type[BaseException]) -> None:
    class Loading(Counter):
        freed = 0

        def load(self) -> None:
            raise error

        def free(self) -> None:
            self.freed += 1

    runner = Loading(args())
    with pytest.raises(raised):
        await runner.start()
    assert not runner.healthy
    await runner.close()
    assert runner.freed == 1


async def test_a_caller_that_is_cancelled_while_the_runner_closes_stays_cancelled() -> None:
    """Whoever cancelled a run before it was closed waits for that cancel, and not for an error."""

    class Waiting(Counter):
        async def produce(self, prompt: Count, progress: ProgressSink) -> OmniModelRunnerOutput:
            await asyncio.Event().wait()
            raise AssertionError

    runner = Waiting(args())
    await runner.start()
    tasks = [asyncio.create_task(runner.run(Count(1), quiet)) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await runner.close()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ended] == [asyncio.CancelledError, EngineDead]
    assert tasks[1].cancelling() == 0


async def test_progress_may_be_told_on_a_thread() -> None:
    threads: set[str] = set()

    class Telling(Counter):
        async def produce(self, prompt: Count, progress: ProgressSink) -> OmniModelRunnerOutput:
            reports = [Progress(number, prompt.to, "numbers") for number in range(prompt.to)]
            await self.on_thread(lambda: [progress(report) for report in reports])
            return OmniModelRunnerOutput()

    seen: list[int] = []

    def sink(progress: Progress) -> None:
        threads.add(threading.current_thread().name)
        seen.append(progress.done)

    async with started(Subject(lambda: Telling(args()), Count, Count(1), "")) as runner:
        await runner.run(Count(100), sink)
    assert seen == list(range(100))
    assert threads == {threading.current_thread().name}


async def test_as_many_calls_are_on_threads_as_it_says() -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def call() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.01)
        with lock:
            inside -= 1

    class Busy(Counter):
        def threads(self) -> int:
            return 3

        async def produce(self, prompt: Count, progress: ProgressSink) -> OmniModelRunnerOutput:
            await self.on_thread(call)
            return OmniModelRunnerOutput()

    async with started(Subject(lambda: Busy(args(slots=64)), Count, Count(1), "")) as runner:
        await asyncio.gather(*(runner.run(Count(1), quiet) for _ in range(12)))
    assert most == 3
