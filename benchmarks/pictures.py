"""Pictures: the queue against OmniLLM and Diffusers, a short job beside long ones, and what snapshots cost and save.

    python -m benchmarks.pictures --json FILE [--jobs 32] [--runs 5] [--quick]

On a tiny Qwen-Image checkpoint with random weights, so that the platform's share is as large as it can be. The sides
of a comparison alternate, and a ratio is of one round.

throughput     pictures of 64 x 64 pixels in 20 steps, which are 30 ms of work each, and of 256 x 256: through the
               queue, all submitted in one call, to the last PNG fetched; in OmniLLM; and one by one in Diffusers'
               own pipeline, from a few of them
a short job    4 steps, while eight jobs of 50 steps are under way: in the diffusion engine, which batches over steps,
               and in an engine that takes no other row before the eight are done; each beside the short job alone
snapshots      one long job through the queue with a snapshot every second, and with none; then both again while the
               worker that denoises is killed in the middle
"""

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.progress import track

from benchmarks.figures import Figure, figure, report
from benchmarks.main_job import PICTURE, offline, ratios, through_stack, timed
from omni_jobs.client import Client
from omni_jobs.pipelines.loader import load_pipelines
from omni_jobs.settings import Settings, packaged_directory
from omni_jobs.stack.embedded import EmbeddedStack
from omni_jobs.states import JobState
from tests.stage_configs import write_stage_configs
from workers.models.qwen_image.parameters import DrawParameters
from workers.models.qwen_image.tiny_checkpoint import build_tiny_checkpoint
from workers.offline import OmniLLM
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import Progress

LONG_ROWS, LONG_STEPS, SHORT_STEPS = 8, 50, 4
ONE_BY_ONE = 4  # pictures of Diffusers in each run
SIDES = (64, 256)  # pixels
SHORT_SIDE = 64
SNAPSHOT_SIDE, SNAPSHOT_STEPS = 448, 200  # of the job that takes snapshots: about six seconds
PAIRS = 3  # of undisturbed jobs for each run, because two of them differ by more than snapshots cost
MAX_SNAPSHOT_COST, LIMIT_S = 1.03, 600.0


def main() -> None:
    arguments = _arguments()
    if arguments.quick:
        arguments.jobs, arguments.runs = 2, 1
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as name:
        directory = Path(name)
        checkpoint = build_tiny_checkpoint(directory / "checkpoint")
        found = asyncio.run(_short_beside_long(checkpoint, arguments.runs))
        with ExitStack() as held:
            kinds = _snapshots_of(arguments)
            stacks = {every: held.enter_context(_stack(directory, checkpoint, every)) for every in kinds}
            stacks.setdefault(False, stacks[True])
            clients = {every: held.enter_context(Client(stack.url)) for every, stack in stacks.items()}
            found += _throughput(stacks[False], clients[False], checkpoint, arguments.jobs, arguments.runs)
            found += _snapshots(stacks, clients, arguments.runs, quick=arguments.quick)
    report(found, arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--jobs", type=int, default=32, help="pictures at once (default 32)")
    parser.add_argument("--runs", type=int, default=5, help="times each side, alternating (default 5)")
    parser.add_argument("--quick", action="store_true", help="two pictures, one run: whether it works")
    return parser.parse_args()


def _snapshots_of(arguments: argparse.Namespace) -> Sequence[bool]:
    """Return of which stacks there is one: with and without snapshots; to see whether it works, one serves as both."""
    return (True,) if arguments.quick else (True, False)


def _stack(directory: Path, checkpoint: Path, every: bool) -> EmbeddedStack:
    """Return a stack that takes a snapshot ``every`` second, or none."""
    engines = {"denoise": {"snapshot_every_s": 1.0 if every else 0.0}}
    settings = Settings(
        data_dir=directory / f"data-{every}",
        stage_configs=write_stage_configs(directory / f"configs-{every}", PICTURE.pipeline, engines),
        models={PICTURE.model: checkpoint},
    )
    return EmbeddedStack(settings, pipelines=[PICTURE.pipeline])


# Throughput.


def _throughput(stack: EmbeddedStack, client: Client, checkpoint: Path, jobs: int, runs: int) -> list[Figure]:
    diffusers = _diffusers(checkpoint)
    with OmniLLM(PICTURE.pipeline, settings=stack.settings) as llm:
        return [
            found
            for side in SIDES
            for found in _three_ways(client, llm, diffusers, _requests(jobs, side), runs, f"{jobs} of {side} px")
        ]


def _requests(jobs: int, side: int) -> list[dict[str, Any]]:
    stages = {"denoise": {**PICTURE.stages["denoise"], "width": side, "height": side}}
    return [request | {"stages": stages} for request in PICTURE.requests(jobs)]


def _three_ways(
    client: Client,
    llm: OmniLLM,
    diffusers: Callable[[Sequence[dict[str, Any]]], None],
    requests: Sequence[dict[str, Any]],
    runs: int,
    name: str,
) -> list[Figure]:
    stack_s: list[float] = []
    offline_s: list[float] = []
    diffusers_s: list[float] = []
    jobs, few = len(requests), requests[:ONE_BY_ONE]
    for turn in track(range(runs + 1), description=f"{name}, alternating"):
        through = timed(lambda: through_stack(client, PICTURE, requests))
        bare = timed(lambda: offline(llm, requests))
        one_by_one = timed(lambda: diffusers(few)) * jobs / len(few)
        if turn:  # the first round warms all
            stack_s.append(through)
            offline_s.append(bare)
            diffusers_s.append(one_by_one)
    return [
        figure(f"{name}, the queue", "s", stack_s),
        figure(f"{name}, OmniLLM", "s", offline_s),
        figure(f"{name}, the queue's rate / OmniLLM's", "×", ratios(offline_s, stack_s), at_least=0.95),
        figure(f"{name}, Diffusers one by one, from {len(few)}", "s", diffusers_s),
        figure(f"{name}, the queue's rate / Diffusers' one by one", "×", ratios(diffusers_s, stack_s)),
    ]


def _diffusers(checkpoint: Path) -> Callable[[Sequence[dict[str, Any]]], None]:
    """Return a function that draws pictures one after another with Diffusers' own pipeline, text encoder and all."""
    from tests.oracles.qwen_image import QwenImageReference

    pipeline = QwenImageReference(checkpoint).pipeline

    def draw(requests: Sequence[dict[str, Any]]) -> None:
        for request in requests:
            denoise = request["stages"]["denoise"]
            pipeline(
                prompt=request["messages"][0]["content"],
                width=denoise["width"],
                height=denoise["height"],
                num_inference_steps=denoise["steps"],
                true_cfg_scale=1.0,
                generator=torch.Generator().manual_seed(request["seed"]),
            )

    return draw


# A short job beside long ones.


async def _short_beside_long(checkpoint: Path, runs: int) -> list[Figure]:
    args = _engine_args(checkpoint)
    width = _text_width(checkpoint)
    batching, waiting = DiffusionRunner(args), DiffusionRunner(replace(args, max_in_flight=LONG_ROWS))
    alone_s: list[float] = []
    beside_s: list[float] = []
    after_s: list[float] = []
    try:
        for runner in (batching, waiting):
            await runner.start()
            await _timed_short(runner, width)
        for _ in track(range(runs), description="a short picture beside long ones"):
            alone_s.append(await _timed_short(batching, width))
            for runner, found in ((batching, beside_s), (waiting, after_s)):
                found.append(await _beside(runner, width))
    finally:
        for runner in (batching, waiting):
            await runner.close()
    return [
        figure(f"{SHORT_STEPS} steps alone", "s", alone_s),
        figure(f"{SHORT_STEPS} steps beside {LONG_ROWS} x {LONG_STEPS}", "s", beside_s),
        figure("beside / alone", "×", ratios(beside_s, alone_s), at_most=2.0),
        figure("without batching over steps / alone", "×", ratios(after_s, alone_s)),
    ]


async def _beside(runner: DiffusionRunner, width: int) -> float:
    """Return the seconds of a short picture that comes when all the long ones are under way."""
    under_way = [asyncio.Event() for _ in range(LONG_ROWS)]

    def report_of(event: asyncio.Event) -> Any:
        return lambda progress: event.set() if isinstance(progress, Progress) else None

    long = [
        asyncio.create_task(runner.run(_prompt(width, LONG_STEPS, seed), report_of(event)))
        for seed, event in enumerate(under_way)
    ]
    for event in under_way:
        await event.wait()
    seconds = await _timed_short(runner, width)
    await asyncio.gather(*long)
    return seconds


async def _timed_short(runner: DiffusionRunner, width: int) -> float:
    begin = time.perf_counter()
    await runner.run(_prompt(width, SHORT_STEPS, 99), lambda _: None)
    return time.perf_counter() - begin


def _prompt(width: int, steps: int, seed: int) -> DiffusionPrompt[Any]:
    embeds = torch.randn(20, width, generator=torch.Generator().manual_seed(seed))
    parameters = DrawParameters(width=SHORT_SIDE, height=SHORT_SIDE, steps=steps)
    return DiffusionPrompt({"prompt_embeds": embeds}, {}, parameters, seed)


def _engine_args(checkpoint: Path) -> OmniEngineArgs:
    pipeline = load_pipelines(packaged_directory("stage_configs"))[PICTURE.pipeline]
    stage = pipeline.stages["denoise"]
    model = OmniModelConfig.for_stage(pipeline, stage, checkpoint)
    return replace(OmniEngineArgs.for_stage(stage, model, Settings()), max_in_flight=LONG_ROWS + 1)


def _text_width(checkpoint: Path) -> int:
    config = yaml.safe_load((checkpoint / "transformer" / "config.json").read_text(encoding="utf-8"))
    return int(config["joint_attention_dim"])


# Snapshots.


def _snapshots(
    stacks: Mapping[bool, EmbeddedStack], clients: Mapping[bool, Client], runs: int, *, quick: bool
) -> list[Figure]:
    """One long job on two stacks in turns, undisturbed and with a kill."""
    side = 256 if quick else SNAPSHOT_SIDE
    seconds: dict[tuple[bool, bool], list[float]] = {
        (every, kill): [] for every in (True, False) for kill in (False, True)
    }
    for kill in (False, True):
        turns = runs if kill else PAIRS * runs
        for turn in track(range(turns + 1), description="a killed worker" if kill else "snapshots"):
            for every in (True, False) if turn % 2 else (False, True):
                taken = _long_job(stacks[every], clients[every], side, kill=kill and turn > 0)
                if turn:
                    seconds[every, kill].append(taken)
    name = f"a job of {SNAPSHOT_STEPS} steps"
    return [
        figure(f"{name}, a snapshot every second", "s", seconds[True, False]),
        figure(f"{name}, no snapshots", "s", seconds[False, False]),
        figure(
            "with snapshots / without",
            "×",
            ratios(seconds[True, False], seconds[False, False]),
            at_most=MAX_SNAPSHOT_COST,
        ),
        figure(f"{name}, its worker killed in the middle, a snapshot every second", "s", seconds[True, True]),
        figure(f"{name}, its worker killed in the middle, no snapshots", "s", seconds[False, True]),
    ]


def _long_job(stack: EmbeddedStack, client: Client, side: int, *, kill: bool) -> float:
    """Return the seconds of one job; ``kill``: its denoising worker dies at half of the steps."""
    (request,) = PICTURE.requests(1)
    denoise = {"width": side, "height": side, "steps": SNAPSHOT_STEPS}
    begin = time.perf_counter()
    job = client.submit({"model": PICTURE.pipeline, **request, "stages": {"denoise": denoise}})
    if kill:
        _wait_for_the_middle(client, job.id)
        name = f"worker {PICTURE.pipeline}.denoise"
        pid = next(child.pid for child in stack.children() if child.name == name)
        if pid is None:
            raise SystemExit(f"{name} is not running")
        os.kill(pid, signal.SIGKILL)
    done = client.wait(job.id, timeout=LIMIT_S)
    if done.status is not JobState.COMPLETED:
        raise SystemExit(f"job {done.id} is {done.status.value}: {done.error}")
    return time.perf_counter() - begin


def _wait_for_the_middle(client: Client, job_id: str) -> None:
    while True:
        run = next(run for run in client.get(job_id).stages if run.name == "denoise")
        if run.progress is not None and run.progress.done >= SNAPSHOT_STEPS // 2:
            return
        if run.finished_at is not None:
            raise SystemExit(f"job {job_id} was over before its worker could be killed")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
