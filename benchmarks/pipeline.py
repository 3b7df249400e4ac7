"""Three stages: speech jobs through the queue, in ``OmniLLM``, and in Transformers.

    python -m benchmarks.pipeline --json FILE [--jobs 32] [--runs 12] [--model PATH] [--singly] [--quick]

The same prompts, greedy, 32 text tokens and up to 64 codes each, on the checkpoint of the tests, so
that the platform's share is as large as it can be:

the platform   HTTP, SQL, queue, a worker per stage, storage and back; from the submit of all in one call
               (--singly: of each in its own, all at once) to the last WAV fetched, workers warm
OmniLLM        the same stages in one process's engines, no queue, no storage; all requests in one call
in waves       OmniLLM's engines, one stage after another, each with all requests in one batch
Transformers   ``generate`` of one request after another: a few of them, with one thread and with one for
               each core, whichever is the quicker in that run

The bound is the sum of the waves: the time if every stage ran all its requests in one batch and nothing
else took any. Stages that work at the same time on other cores may come below it; whoever is a bit
above it has nothing left to win but that. All sides take turns in one run; which of the first two
begins alternates, and each does a few jobs before it is timed. Each engine has as many
threads as OMP_NUM_THREADS says, by default one: the platform runs three engines on this machine, and so
does OmniLLM.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from benchmarks.main_job import ECHO, SPEECH, Work, offline, ratios, through_stack, timed
from omni_jobs.client import Client
from omni_jobs.new_job import NewJob
from omni_jobs.payloads import Payload
from omni_jobs.settings import Settings
from omni_jobs.stack.embedded import EmbeddedStack
from workers.execution.stage_llm import StageLLM
from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
from workers.offline import OmniLLM

ONE_BY_ONE = 2  # requests of Transformers in each run, with each number of threads
WARM_UP = 8  # jobs of a side before its time is taken: it stood idle while the others worked


def main() -> None:
    arguments = _arguments()
    if arguments.quick:
        arguments.jobs, arguments.runs = 4, 1
    # As in the stack: one thread in each engine, bound to no core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    work = ECHO if arguments.quick else SPEECH
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory:
        settings = Settings(data_dir=Path(directory) / "data")
        model = None
        if work is SPEECH:
            model = arguments.model or build_tiny_checkpoint(Path(directory) / "checkpoint")
            settings = settings.model_copy(update={"models": {work.pipeline: model}})
        with (
            EmbeddedStack(settings, pipelines=[work.pipeline]) as stack,
            Client(stack.url) as client,
            InWaves(work.pipeline, settings=stack.settings) as llm,
        ):
            found = _alternate(work, client, llm, model, arguments)
    report(found, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--model", type=Path, help="a Qwen2.5-Omni checkpoint directory")
    parser.add_argument("--jobs", type=int, default=32, help="at once (default 32)")
    parser.add_argument("--runs", type=int, default=12, help="times each side, alternating (default 12)")
    parser.add_argument("--singly", action="store_true", help="submit each job in a call of its own, all at once")
    parser.add_argument("--quick", action="store_true", help="the echo pipeline: seconds, and no model")
    return parser.parse_args()


class InWaves(OmniLLM):
    """OmniLLM that can also run one stage after another, each with all requests at once."""

    def in_waves(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Seconds of each stage alone, its inputs ready at its start."""
        return self._call(self._in_waves([self._admit(n, request) for n, request in enumerate(requests)]))

    async def _in_waves(self, jobs: Sequence[NewJob]) -> dict[str, float]:
        made: list[dict[str, Payload]] = [{} for _ in jobs]
        seconds = {}
        for name, llm in self._stages.items():
            begin = time.perf_counter()
            payloads = await asyncio.gather(
                *(self._one(llm, job, earlier) for job, earlier in zip(jobs, made, strict=True))
            )
            seconds[name] = time.perf_counter() - begin
            for earlier, payload in zip(made, payloads, strict=True):
                if payload is not None:
                    earlier[name] = payload
        return seconds

    async def _one(self, llm: StageLLM, job: NewJob, made: Mapping[str, Payload]) -> Payload | None:
        upstream = {name: made[name] for name in llm.stage.config.inputs}
        is_taken = bool(self.pipeline.successors(llm.stage.name))
        stage_input = llm.input_of(job, upstream=upstream, has_successors=is_taken)
        output = await llm.generate(stage_input)
        return llm.stage.finish(output, stage_input).payload


def _alternate(
    work: Work, client: Client, llm: InWaves, model: Path | None, arguments: argparse.Namespace
) -> list[Figure]:
    jobs, runs = arguments.jobs, arguments.runs
    requests = work.requests(jobs)
    reference = None if model is None else _transformers(model)
    sides: list[Callable[[Sequence[dict[str, Any]]], object]] = [
        lambda some: through_stack(client, work, some, singly=arguments.singly),
        lambda some: offline(llm, some),
    ]
    ours: list[float] = []
    bare: list[float] = []
    waves: list[dict[str, float]] = []
    theirs: list[float] = []
    with Progress() as progress:
        bar = progress.add_task("alternating", total=runs + 1)
        for turn in range(runs + 1):
            seconds = [0.0, 0.0]
            for side in (0, 1) if turn % 2 else (1, 0):
                sides[side](requests[:WARM_UP])
                seconds[side] = timed(partial(sides[side], requests))
            in_waves = llm.in_waves(requests)
            one_by_one = 0.0 if reference is None else reference(requests[:ONE_BY_ONE]) * jobs / ONE_BY_ONE
            if turn:  # the first warms all
                ours.append(seconds[0])
                bare.append(seconds[1])
                waves.append(in_waves)
                theirs.append(one_by_one)
            progress.advance(bar)
    return [*_figures(ours, bare, waves, jobs), *_against_transformers(ours, theirs, jobs, reference is not None)]


def _figures(
    ours: Sequence[float], bare: Sequence[float], waves: Sequence[Mapping[str, float]], jobs: int
) -> list[Figure]:
    bound = [sum(stages.values()) for stages in waves]
    return [
        figure(f"{jobs} jobs, the platform", "s", ours),
        figure(f"{jobs} jobs, OmniLLM", "s", bare),
        figure("the platform's rate / OmniLLM's", "×", ratios(bare, ours), at_least=0.95),
        *(figure(f"{jobs} in one batch: {name}", "s", [stages[name] for stages in waves]) for name in waves[0]),
        figure("the platform's rate / the bound's", "×", ratios(bound, ours)),
        figure("OmniLLM's rate / the bound's", "×", ratios(bound, bare)),
    ]


def _against_transformers(ours: Sequence[float], theirs: Sequence[float], jobs: int, is_there: bool) -> list[Figure]:
    if not is_there:
        return []
    return [
        figure(f"{jobs} jobs, Transformers one by one, from {ONE_BY_ONE}", "s", theirs),
        figure("the platform's rate / Transformers' one by one", "×", ratios(theirs, ours)),
    ]


def _transformers(model: Path) -> Callable[[Sequence[Mapping[str, Any]]], float]:
    """Gives the seconds of requests one after another, with the better number of threads."""
    from tests.oracles.reference import Reference

    reference = Reference(model)
    thinker, talker = SPEECH.stages["thinker"], SPEECH.stages["talker"]
    of_engines = torch.get_num_threads()

    def one_by_one(requests: Sequence[Mapping[str, Any]]) -> None:
        for request in requests:
            reference.generate(
                request["messages"],
                thinker_max_tokens=thinker["max_tokens"],
                talker_max_tokens=talker["max_tokens"],
                seed=request["seed"],
            )

    def quickest(requests: Sequence[Mapping[str, Any]]) -> float:
        seconds = []
        for threads in (1, len(os.sched_getaffinity(0))):
            torch.set_num_threads(threads)
            seconds.append(timed(lambda: one_by_one(requests)))
        torch.set_num_threads(of_engines)
        return min(seconds)

    return quickest


if __name__ == "__main__":
    main()
