"""The AR runner: what capturing hidden states costs, and what batching saves.

    python -m benchmarks.ar_runner --json FILE [--runs 5] [--quick]

- Capture on and off in one engine, at 1, 8, 32 and 128 requests: end to end, so with the rows'
  way out of the engine.
- Three kinds of rows captured, two layers beside the last, in an engine of its own.
- A captured prompt that begins with a system prompt of 1,000 tokens, known or new, up to its first
  token; also on a model of 39 million weights, whose prefill takes longer than what every request costs.
- Nothing captured: our worker against vLLM's own, each in an engine of its own.
- One step's capture alone, without an engine: one addition and one copy for the whole batch,
  against an addition and a copy per request, with rows as long as the 3B model's.
- The same prompts with Transformers' ``generate``, which keeps its hidden states as well: one by
  one, and padded into one batch.

The sides of a comparison alternate, and a ratio is of one round. A tiny checkpoint with random
weights: what is measured is the runner, not the model. On CPUs every process computes with one
thread. On a busy machine the ratios of CPU time, of this process and the engines' together, tell
more than those of the clock.
"""

import argparse
import asyncio
import itertools
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from omni_jobs.pipelines.loader import load_pipeline
from omni_jobs.settings import Settings, packaged_directory
from tests.oracles.causal_lm import build_causal_lm
from workers.models.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
from workers.runners.ar.ar_runner import ARRunner
from workers.runners.ar.captures import CAPTURE, CAPTURE_ROWS
from workers.runners.ar.gpu_ar_model_runner import GPUARModelRunner
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prefix_reader import PrefixReader
from workers.runners.ar.prompts import OmniTextPrompt, OmniTokensPrompt
from workers.runners.on_vllm.vllm_runner import VllmRunner
from workers.runners.spool import Spool
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.stage import Stage
from workers.vllm_hooks.model_runner import AddedRequest

Times = dict[str, list[float]]


@dataclass(frozen=True)
class Rounds:
    """Seconds per round of each side."""

    clock: Times
    cpu: Times


HIDDEN_SIZE = 2048  # the 3B thinker's
STEPS = 64  # of a request, in the measure of a step alone


def figures(*, runs: int, quick: bool) -> list[Figure]:
    """Quick: few requests; that it runs, not how fast."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the worker in the engine's process: none waits busily
    if _device().type == "cpu":  # threads that wait for a busy neighbour's core would be all one sees
        os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        torch.set_num_threads(1)
    counts = (1, 4) if quick else (1, 8, 32, 128)
    tokens = 8 if quick else 32
    with tempfile.TemporaryDirectory(prefix="omni-jobs-benchmark-") as directory:
        checkpoint = build_tiny_checkpoint(Path(directory) / "checkpoint")
        found = _batched_against_per_request(counts, runs)
        return [*found, *asyncio.run(_with_engines(checkpoint, counts, tokens, runs, quick=quick))]


# In engines


class StockWorker(ARRunner):
    """The runner on vLLM's own worker, which captures nothing."""

    async def start(self) -> None:
        self._spool = self._held.enter_context(closing(Spool(self.args.spool_dir, self.args.min_free_bytes)))
        self._prefixes = PrefixReader(None)
        self._engine_args = {name: value for name, value in self._engine_args.items() if name != "worker_cls"}
        await VllmRunner.start(self)
        self._stop_ids = []


async def _with_engines(
    checkpoint: Path, counts: Sequence[int], tokens: int, runs: int, *, quick: bool
) -> list[Figure]:
    args = _engine_args(checkpoint, max_num_seqs=max(counts))
    ours = ARRunner(args)
    layers = ARRunner(replace(args, engine=args.engine.model_copy(update={"hidden_layers": _LAYERS})))
    stock = StockWorker(args)
    transformers = Transformers(checkpoint)
    try:
        await ours.start()
        await layers.start()
        await stock.start()
        found: list[Figure] = []
        for count in counts:
            plain, captured = (_prompts(count, tokens, capture=capture) for capture in (False, True))
            sides: dict[str, Callable[[], Awaitable[None]]] = {
                "capture off": _run(ours, plain),
                "capture on": _run(ours, captured),
                "vLLM's worker": _run(stock, plain),
                "three kinds": _run(layers, captured),
            }
            if count <= 32:
                words = [prompt.prompt for prompt in plain]
                sides["Transformers, one by one"] = _in_thread(partial(transformers.one_by_one, words, tokens))
                sides["Transformers, one batch"] = _in_thread(partial(transformers.batch, words, tokens))
            found += _compared(await _alternate(f"{count} requests", sides, runs), count, tokens)
    finally:
        await ours.close()
        await layers.close()
        await stock.close()
    beginning = 100 if quick else 1000
    found += await _beginnings("", args, 4 * runs, beginning)
    if not quick:
        found += await _beginnings(" of the model of 39 million weights", _chat_args(checkpoint), runs, beginning)
    return found


async def _beginnings(of: str, args: OmniEngineArgs, runs: int, tokens: int) -> list[Figure]:
    """What a captured prompt takes up to its first token, if an earlier one had its beginning and if none had."""
    engine = args.engine.model_copy(update={"enable_prefix_caching": True, "max_model_len": tokens + 20})
    runner = ARRunner(replace(args, engine=engine))
    parameters = ArParameters(temperature=0, max_tokens=1, ignore_eos=True)
    turn = itertools.count()
    known = [65 + n % 20 for n in range(tokens)]

    async def run(beginning: list[int]) -> None:
        ending = [90 + int(figure) for figure in f"{next(turn):06}"]
        prompt = OmniTokensPrompt(beginning + ending, {}, parameters, seed=1, capture=True)
        (await runner.run(prompt, lambda progress: None)).free()

    async def a_new_one() -> None:
        chance = random.Random(next(turn))  # noqa: S311 - no secret
        await run([65 + chance.randrange(23) for _ in range(tokens)])

    try:
        await runner.start()
        sides: dict[str, Callable[[], Awaitable[None]]] = {"known": partial(run, known), "new": a_new_one}
        rounds = await _alternate(f"a beginning of {tokens} tokens", sides, runs)
    finally:
        await runner.close()
    of = f"a captured prompt{of} with a beginning of {tokens} tokens"
    found = [figure(f"{of}, {name}", "ms", [1e3 * one for one in times]) for name, times in rounds.clock.items()]
    return [*found, figure(f"{of}, time: known / new", "×", _ratios(rounds.clock["known"], rounds.clock["new"]))]


def _compared(rounds: Rounds, count: int, tokens: int) -> list[Figure]:
    said, of = count * tokens, f"{count} request{'s' if count > 1 else ''}"
    found = [
        figure(f"{of}, {name}", "tokens/s", [said / seconds for seconds in runs]) for name, runs in rounds.clock.items()
    ]
    for ours, theirs in (
        ("capture on", "capture off"),
        ("three kinds", "capture off"),
        ("capture off", "vLLM's worker"),
        ("capture on", "Transformers, one by one"),
        ("capture on", "Transformers, one batch"),
    ):
        for name, times in (("time", rounds.clock), ("CPU time", rounds.cpu)):
            if ours in times and theirs in times:
                found.append(figure(f"{of}, {name}: {ours} / {theirs}", "×", _ratios(times[ours], times[theirs])))
    return found


def _engine_args(checkpoint: Path, max_num_seqs: int) -> OmniEngineArgs:
    # Without the prefix cache, which only those that capture nothing read.
    changed = {"max_num_seqs": max_num_seqs, "enable_prefix_caching": False, "limit_mm_per_prompt": _NO_MEDIA}
    return _stage_args("qwen2_5_omni", "thinker", checkpoint, changed)


def _chat_args(beside: Path) -> OmniEngineArgs:
    larger = beside.parent / "larger"
    larger.mkdir()
    build_causal_lm(larger, hidden_size=768, layers=8)
    return _stage_args("chat", "llm", larger, {"kv_cache_memory_bytes": 268_435_456})


def _stage_args(pipeline: str, stage: str, checkpoint: Path, changed: Mapping[str, Any]) -> OmniEngineArgs:
    loaded = load_pipeline(packaged_directory("stage_configs") / f"{pipeline}.yaml")
    config = loaded.stage(stage)
    model = Stage(loaded, config, checkpoint).model
    if model is None:
        raise SystemExit("the pipeline has no model")
    args = OmniEngineArgs.for_stage(config, model, Settings())
    return replace(args, engine=args.engine.model_copy(update=changed))


_LAYERS = {"embedded": 0, "second": 1}
_NO_MEDIA = {"audio": 0, "image": 0, "video": 0}


def _prompts(count: int, tokens: int, *, capture: bool) -> list[OmniTextPrompt]:
    """Prompts of different lengths, with as many tokens each to say."""
    parameters = ArParameters(temperature=0, max_tokens=tokens, ignore_eos=True)
    words = [f"Job {n}. " + "Tell me more. " * (n % 5) for n in range(count)]
    return [OmniTextPrompt(one, {}, parameters, seed=1, capture=capture) for one in words]


def _run(runner: ARRunner, prompts: Sequence[OmniTextPrompt]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await asyncio.gather(*(runner.run(prompt, lambda progress: None) for prompt in prompts))

    return run


def _in_thread(work: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        await asyncio.to_thread(work)

    return run


async def _alternate(title: str, sides: Mapping[str, Callable[[], Awaitable[None]]], runs: int) -> Rounds:
    """The first round warms all and is left out. The order turns each round."""
    names = list(sides)
    clock: Times = {name: [] for name in names}
    cpu: Times = {name: [] for name in names}
    with Progress(transient=True) as progress:
        for turn in progress.track(range(runs + 1), description=title):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                begin, used = time.perf_counter(), _cpu_seconds()
                await sides[name]()
                clock[name].append(time.perf_counter() - begin)
                cpu[name].append(max(_cpu_seconds() - used, _TICK_S))
    return Rounds(*({name: found[1:] for name, found in times.items()} for times in (clock, cpu)))


_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def _cpu_seconds() -> float:
    """What this process and all below it have used."""
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = Path("/proc") / str(waiting.pop())
        try:
            fields = (process / "stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
            total += int(fields[11]) + int(fields[12])
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="ascii").split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return total * _TICK_S


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


class Transformers:
    """The thinker's ``generate``, greedy, with the hidden states that a talker would need."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoTokenizer, Qwen2_5OmniForConditionalGeneration

        dtype = torch.float32
        model = Qwen2_5OmniForConditionalGeneration.from_pretrained(checkpoint, dtype=dtype)
        self._thinker: Any = model.thinker.eval().to(_device())
        self._tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")

    def one_by_one(self, words: Sequence[str], tokens: int) -> None:
        for one in words:
            self.batch([one], tokens)

    def batch(self, words: Sequence[str], tokens: int) -> None:
        inputs = self._tokenizer(list(words), return_tensors="pt", padding=True).to(_device())
        length = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        with torch.inference_mode():
            self._thinker.generate(**inputs, **length, output_hidden_states=True, return_dict_in_generate=True)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# A step alone


class StepsAlone(GPUARModelRunner):
    """The runner's own capture without vLLM under it: every request has one row per step."""

    def __init__(self, count: int) -> None:
        self.device, self.max_num_reqs, self.max_num_tokens = _device(), count, 2048
        self.set_up()
        self.adds_embeddings = True
        self.model_loaded()
        ids = [f"request-{n:04}" for n in range(count)]
        self.input_batch: Any = SimpleNamespace(req_ids=ids, num_computed_tokens_cpu=np.zeros(count, dtype=np.int32))
        self.query_start_loc: Any = SimpleNamespace(np=np.arange(count + 1, dtype=np.int32))
        for name in ids:
            self.request_added(AddedRequest(name, 1, 0, {CAPTURE: name, CAPTURE_ROWS: STEPS}, []))
        self._embeds = torch.randn(count, HIDDEN_SIZE, device=self.device)
        self._hidden = torch.randn(count, HIDDEN_SIZE, device=self.device)

    def holds_output(self) -> bool:
        return True

    def holds_inputs(self) -> bool:
        return True

    def is_pipelined(self) -> bool:
        return False

    def guesses(self) -> bool:
        return False

    def get_model(self) -> Any:
        return None

    def hidden_row(self) -> tuple[torch.dtype, int]:
        return torch.float32, HIDDEN_SIZE

    def asked_layers(self) -> dict[str, int]:
        return {}

    def run(self, capture: Callable[[torch.Tensor, torch.Tensor], None]) -> float:
        """Seconds of one step, the median over a request's."""
        times = []
        self.input_batch.num_computed_tokens_cpu[:] = 0
        with torch.inference_mode():
            for _ in range(STEPS):
                begin = time.perf_counter()
                capture(self._embeds, self._hidden)
                times.append(time.perf_counter() - begin)
                self.input_batch.num_computed_tokens_cpu += 1
        return float(np.median(times))

    def batched(self, embeds: torch.Tensor, hidden: torch.Tensor) -> None:
        kept = self.before_forward(None, embeds)
        if kept is not None:
            self.after_forward(hidden, kept)

    def per_request(self, embeds: torch.Tensor, hidden: torch.Tensor) -> None:
        """As the first generation of such runners did."""
        rows = self.step_rows(self.captures)
        kept = [embeds[part.begin : part.end].clone() for part in rows]
        for part, embedded in zip(rows, kept, strict=True):
            capture = self.captures[part.request_id]
            zeroed = torch.from_numpy(capture.zeroed[part.position : part.position + part.end - part.begin])
            if zeroed.any():
                embedded[: len(zeroed)] = embedded[: len(zeroed)].masked_fill(zeroed.to(embedded.device)[:, None], 0)
            row = (hidden[part.begin : part.end] + embedded).cpu()
            capture.write(part.position, row.view(torch.uint8).numpy(), 0, len(row))


def _batched_against_per_request(counts: Sequence[int], runs: int) -> list[Figure]:
    found: list[Figure] = []
    for count in counts:
        steps = StepsAlone(count)
        times: Times = {"batched": [], "per request": []}
        for _ in range(runs + 1):
            times["batched"].append(steps.run(steps.batched))
            times["per request"].append(steps.run(steps.per_request))
        for name, seconds in times.items():
            found.append(
                figure(f"a step's capture, {count} requests, {name}", "µs", [1e6 * one for one in seconds[1:]])
            )
        ratios = _ratios(times["per request"][1:], times["batched"][1:])
        found.append(figure(f"a step's capture, {count} requests: time per request / batched", "×", ratios))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--runs", type=int, default=5, help="times each side, alternating (default 5)")
    parser.add_argument("--quick", action="store_true", help="few requests, one run: whether it works")
    arguments = parser.parse_args()
    report(figures(runs=1 if arguments.quick else arguments.runs, quick=arguments.quick), arguments.json)


if __name__ == "__main__":
    main()
