"""``OmniLLM``: a whole pipeline run from one process, without broker, database or object store.

    llm = OmniLLM("qwen2_5_omni", model="/models/Qwen2.5-Omni-7B")
    [output] = llm.generate([{"messages": [...], "modalities": ["text", "audio"]}])
    output.text, output.audio

Admission, stages and results are the same as through the queue. Every stage works on the requests that are ready
for it: the talker speaks the first request while the thinker still thinks about the second.
"""

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars

from omni_jobs.cores import threads_per_engine
from omni_jobs.errors import OmniJobsError
from omni_jobs.media.wall import MediaWall
from omni_jobs.new_job import NewJob
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.requests import admit, parse
from omni_jobs.settings import Settings, read_settings
from omni_jobs.views import WarningView, merge_results
from workers.execution.run_time_limit import TimeLimit
from workers.execution.stage_llm import StageLLM
from workers.offline.statistics import StageMeter, StageStatistics
from workers.stages.types import Artifact, OmniModelRunnerOutput, Progress, StageResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OmniOutput:
    """The result of one request to ``OmniLLM`` that succeeded; one that failed has an OmniJobsError in its place.

    ``request_index`` is the request's place in its call.

    result     what the queue would give as the job's ``result``: text, finish_reason, usage, …
    artifacts  name → artifact, ``audio.wav`` among them when audio was asked for
    warnings   what the queue would give as the job's ``warnings``: one of each stage that was cut at its limit
    stages     stage name → its runner's output: tokens, finish_reason, hidden states, waveform
    times      stage name → (begin, end) of its run, in seconds since ``generate`` or ``stream`` was called
    """

    request_index: int
    result: Mapping[str, Any]
    artifacts: Mapping[str, Artifact]
    warnings: Sequence[WarningView]
    stages: Mapping[str, OmniModelRunnerOutput] = field(repr=False)
    times: Mapping[str, tuple[float, float]] = field(repr=False)

    @property
    def text(self) -> str | None:
        """The answer's text; None when text was not asked for."""
        return self.result.get("text")

    @property
    def audio(self) -> bytes | None:
        """The bytes of the answer's audio file; None when audio was not asked for."""
        return self._file("audio")

    @property
    def image(self) -> bytes | None:
        """The bytes of the answer's picture file; None when no picture was asked for."""
        return self._file("image")

    def _file(self, modality: str) -> bytes | None:
        return next((bytes(each.data) for each in self.artifacts.values() if each.modality == modality), None)


@dataclass(slots=True)
class _Request:
    """One request on its way through its stages; the mappings are by stage name."""

    job: NewJob
    begin: float  # of ``times``, by ``time.perf_counter``
    job_id: str = field(default_factory=lambda: f"offline-{uuid.uuid4().hex}")
    tasks: dict[str, asyncio.Task[StageResult]] = field(default_factory=dict)
    outputs: dict[str, OmniModelRunnerOutput] = field(default_factory=dict)
    times: dict[str, tuple[float, float]] = field(default_factory=dict)


class OmniLLM:
    """A pipeline with its engines, which are child processes. A context manager; otherwise call :meth:`close`."""

    def __init__(
        self,
        pipeline: str,
        *,
        model: str | Path | Mapping[str, str | Path] | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Load every stage of a pipeline at once.

        ``model`` is the checkpoint to use in place of the pipeline's own. A mapping has the checkpoints of stages with
        a model of their own, by the stage's name.

        Without ``settings`` they are read from the environment.

        Raises ConfigError, NotFound when no pipeline or stage has this name, and EngineDead when an engine ends in its
        start.
        """
        settings = settings or read_settings()
        self.pipeline = load_pipelines(settings.resolved_stage_configs).named(pipeline, field="pipeline")
        if isinstance(model, Mapping):
            given = {f"{pipeline}.{self.pipeline.stage(stage).name}": Path(path) for stage, path in model.items()}
        else:
            given = {} if model is None else {pipeline: Path(model)}
        self._settings = settings = settings.model_copy(update={"models": {**settings.models, **given}})
        self._wall = MediaWall(settings)
        self._meters = {name: StageMeter() for name in self.pipeline.stages}
        self._stages = {name: StageLLM.create(self.pipeline, name, settings) for name in self.pipeline.stages}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="omni-llm", daemon=True)
        self._thread.start()
        try:
            with _cores_divided(sum(not stage.runner.produces for stage in self.pipeline.stages.values())):
                self._call(self._start())
        except BaseException:
            self.close()
            raise

    def generate(
        self, requests: Sequence[str | Mapping[str, Any]], *, progress: bool = False
    ) -> list[OmniOutput | OmniJobsError]:
        """Run all requests and return their results; the n-th result belongs to the n-th request.

        A request is a job's body without ``model``, or a string: the text of one user message. ``progress``: show a
        bar per stage. All are admitted before the first runs. Raises InvalidRequest and the other errors of admission.
        A request that fails later disturbs no other: its OmniJobsError stands in the list as its result. Another
        exception, of the model's code, is raised and cancels the requests that are left.
        """
        results: list[OmniOutput | OmniJobsError | None] = [None] * len(requests)
        for index, result in self.stream(requests, progress=progress):
            results[index] = result
        return [result for result in results if result is not None]

    def stream(
        self, requests: Sequence[str | Mapping[str, Any]], *, progress: bool = False
    ) -> Iterator[tuple[int, OmniOutput | OmniJobsError]]:
        """Run all requests like :meth:`generate`, and yield each (index of the request, result) as soon as it is there.

        The iteration, not the call, raises the errors. Leaving it early cancels the requests that are left.
        """
        admitted = [self._admit(index, request) for index, request in enumerate(requests)]
        begin = time.perf_counter()
        with _bars(self._meters, admitted, progress) as advance:
            futures = {
                asyncio.run_coroutine_threadsafe(self._run(index, job, begin, advance), self._loop): index
                for index, job in enumerate(admitted)
            }
            try:
                for future in as_completed(futures):
                    error = future.exception()
                    yield futures[future], error if isinstance(error, OmniJobsError) else future.result()
            finally:
                for future in futures:
                    future.cancel()

    def statistics(self) -> dict[str, StageStatistics]:
        """Return each stage's statistics since the start, by stage name. For any thread, while others generate."""
        return {name: meter.read() for name, meter in self._meters.items()}

    def _admit(self, index: int, request: str | Mapping[str, Any]) -> NewJob:
        body = {"messages": [{"role": "user", "content": request}]} if isinstance(request, str) else dict(request)
        try:
            submission = parse({**body, "model": self.pipeline.name}, self._settings)
            return admit(submission, Pipelines([self.pipeline]), self._settings, wall=self._wall)
        except OmniJobsError as error:
            error.field = f"requests.{index}.{error.field}" if error.field else f"requests.{index}"
            raise

    async def _run(self, index: int, job: NewJob, begin: float, advance: Callable[[str], None]) -> OmniOutput:
        """Run the stages of one request, each as soon as the stages before it are done."""
        request = _Request(job, begin)
        try:
            with _first_error():
                async with asyncio.TaskGroup() as group:
                    for stage in job.stages:
                        request.tasks[stage.name] = group.create_task(self._run_stage(request, stage.name, advance))
        finally:
            for output in request.outputs.values():
                output.free()  # the caller may keep it, outside of the budget
        results = {stage.name: request.tasks[stage.name].result() for stage in job.stages}
        return OmniOutput(
            request_index=index,
            result=merge_results(result.result for result in results.values()),
            artifacts={artifact.name: artifact for result in results.values() for artifact in result.artifacts},
            warnings=[WarningView(stage=name, **each) for name, result in results.items() for each in result.warnings],
            stages=request.outputs,
            times=request.times,
        )

    async def _run_stage(self, request: _Request, name: str, advance: Callable[[str], None]) -> StageResult:
        llm, meter = self._stages[name], self._meters[name]
        upstream = {earlier: (await request.tasks[earlier]).payload for earlier in llm.stage.config.inputs}
        stage_input = llm.input_of(
            request.job,
            upstream={earlier: payload for earlier, payload in upstream.items() if payload is not None},
            has_successors=any(successor in request.tasks for successor in self.pipeline.successors(name)),
            job_id=request.job_id,
        )
        started = time.perf_counter()
        with meter.run() as meter_progress:
            async with TimeLimit(llm.stage.config) as limit:

                def report(progress: Progress) -> None:
                    limit.note(progress)
                    if not progress.waiting:
                        meter_progress(progress)

                output = request.outputs[name] = await llm.generate(stage_input, report)
        request.times[name] = (started - request.begin, time.perf_counter() - request.begin)
        result = llm.stage.finish(output, stage_input)
        meter.count(output, 0 if result.payload is None else result.payload.nbytes)
        advance(name)
        return result

    async def _start(self) -> None:
        with _first_error():
            async with asyncio.TaskGroup() as group:
                for llm in self._stages.values():
                    group.create_task(llm.start())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def close(self) -> None:
        """End every engine and the media's decoders; safe to call twice."""
        if self._loop.is_closed():
            return
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        await asyncio.gather(*(llm.close() for llm in self._stages.values()), asyncio.to_thread(self._wall.close))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_ENVIRONMENT = threading.Lock()


@contextmanager
def _cores_divided(engines: int) -> Iterator[None]:
    """Give every engine that is started inside its share of the cores, as the embedded stack gives its workers.

    Variables that the caller has set stay; afterwards the caller's environment is the same as before.
    """
    share = {
        "OMP_NUM_THREADS": str(threads_per_engine(engines)),
        # vLLM's own choice binds all engines to the same first cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Without binding, vLLM's CPU engine needs no second process, which would import vLLM once more.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    with _ENVIRONMENT:
        ours = {name: value for name, value in share.items() if name not in os.environ} if engines else {}
        os.environ.update(ours)
        try:
            yield
        finally:
            for name in ours:
                os.environ.pop(name, None)


@contextmanager
def _first_error() -> Iterator[None]:
    """Raise the first error of a task group by itself, because the others follow from its cancelling."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


@contextmanager
def _bars(meters: Mapping[str, StageMeter], jobs: Sequence[NewJob], shown: bool) -> Iterator[Callable[[str], None]]:
    """Show a progress bar per stage; give the function to call with a stage's name when one of its runs is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with ProgressBars(*columns, disable=not shown) as progress:
        totals = {name: sum(name in {stage.name for stage in job.stages} for job in jobs) for name in meters}
        bars = {name: progress.add_task(name, total=total, rate="") for name, total in totals.items() if total}

        def advance(name: str) -> None:
            statistics = meters[name].read()
            rate = f"{statistics.units_per_s:,.0f} {statistics.unit}/s" if statistics.units else ""
            progress.update(bars[name], advance=1, rate=rate)

        yield advance
