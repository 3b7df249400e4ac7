"""The diffusion runner: what steps of many rows cost, beside the rows one by one and beside Transformers.

    python -m benchmarks.diffusion_runner --json FILE [--runs 5] [--quick]

A code2wav with random weights and the real one's structure, smaller: what is measured is how
the work is arranged. The sides of a comparison alternate, and a ratio is of one round; above 1
the first named is faster. On a CPU the time is this process's CPU time, which a busy machine
changes little. torch.compile is measured in its own part, with how long it takes to compile.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from benchmarks.figures import Figure, figure, report
from omni_jobs.errors import StageError
from workers.models.qwen2_5_omni.code2wav import Code2Wav
from workers.models.qwen2_5_omni.denoising import CodecRequest, MelDenoiser
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.models.qwen2_5_omni.token2wav import Token2Wav
from workers.runners.diffusion.gpu_diffusion_model_runner import GPUDiffusionModelRunner
from workers.runners.diffusion.model import Cost
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import StepBudget
from workers.stages.types import OmniModelRunnerOutput

VOICE = "someone"
RAGGED = (120, 60, 90, 75)  # codes; 50 are a second
SHORT = (20, 14, 25, 11, 18, 23, 12, 16)


def figures(*, runs: int, quick: bool) -> list[Figure]:
    """Medians over ``runs`` rounds; ``quick``: whether it works."""
    parameters = OdeParameters(steps=2)
    model = _build(quick)
    speaker = {"cond": torch.randn(1, 192), "ref_mel": torch.randn(1, 300, 80)}
    ours = Token2Wav(model, {VOICE: speaker})
    found: list[Figure] = []
    for name, lengths in (("ragged", RAGGED), ("short", SHORT)):
        requests = [_request(length) for length in (lengths[:2] if quick else lengths)]
        sides: dict[str, Callable[[], object]] = {
            "batch": partial(_mels, ours, requests, parameters),
            "one by one": partial(_each, lambda each: _mels(ours, [each], parameters), requests),
            "Transformers": partial(_each, lambda each: _sample(model, speaker, each, parameters), requests),
        }
        times = _alternate(f"transformer, {name}", sides, runs)
        found.append(figure(f"diffusion, {name}: a batch of {len(requests)}", "s", times["batch"]))
        for other in ("one by one", "Transformers"):
            ratio = _ratios(times[other], times["batch"])
            found.append(figure(f"diffusion, {name}: batch against {other}", "x", ratio))
    found += _long_codes(model, ours, speaker, parameters, 40 if quick else 1000, runs)
    found += _vocoder(ours, ((2, 20),) if quick else ((8, 20), (4, 60), (4, 200)), runs)
    found += _short_beside_long(ours, 12 if quick else 25, runs)
    if not quick:
        found += _compiled(ours, runs)
    return found


def _long_codes(
    model: Any, ours: Token2Wav, speaker: Mapping[str, Any], parameters: OdeParameters, length: int, runs: int
) -> list[Figure]:
    """One long row: Transformers' attention looks at every pair of frames."""
    request = _request(length)
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: _mels(ours, [request], parameters),
        "Transformers": lambda: _sample(model, speaker, request, parameters),
    }
    times = _alternate("transformer, long codes", sides, runs)
    return [
        figure(f"diffusion, {length} codes: one row", "s", times["ours"]),
        figure(f"diffusion, {length} codes: against Transformers", "x", _ratios(times["Transformers"], times["ours"])),
    ]


def _vocoder(ours: Token2Wav, batches: Sequence[tuple[int, int]], runs: int) -> list[Figure]:
    found = []
    for rows, codes in batches:
        mels = [torch.randn(2 * codes, 80, device=ours.device) for _ in range(rows)]
        sides: dict[str, Callable[[], object]] = {
            "batch": partial(ours.vocode, mels),
            "one by one": partial(_each, lambda mel: ours.vocode([mel]), mels),
        }
        times = _alternate(f"vocoder, {rows} of {codes} codes", sides, runs)
        ratio = _ratios(times["one by one"], times["batch"])
        found.append(figure(f"vocoder, {rows} rows of {codes} codes: batch against one by one", "x", ratio))
    return found


def _short_beside_long(ours: Token2Wav, length: int, runs: int) -> list[Figure]:
    """A row of four steps comes while eight run that are far from their end: its time against its time alone."""
    slow, quick = (OdeParameters(steps=1 + count, solver="euler") for count in (999, 4))
    found = []
    for name, units in (("one row", 2 * length), ("the model's own units", Code2Wav(ours).max_batch_cost)):
        budget = partial(StepBudget, units, 16)
        busy = GPUDiffusionModelRunner(Code2Wav(ours), ours.device, budget())
        for number in range(8):
            prompt = _prompt(length, number, slow)
            busy.add(_Caller(prompt, busy.model.check(prompt)))
        for _ in range(8):
            busy.execute_model()
        sides: dict[str, Callable[[], object]] = {
            "beside": partial(_until_done, busy, _prompt(length, 9, quick)),
            "alone": lambda budget=budget: _until_done(  # type: ignore[misc]
                GPUDiffusionModelRunner(Code2Wav(ours), ours.device, budget()), _prompt(length, 9, quick)
            ),
        }
        times = _alternate(f"a short row beside long ones, {name} a step", sides, runs)
        ratio = _ratios(times["beside"], times["alone"])
        found.append(figure(f"4 steps beside eight long rows, {name} a step: against alone", "x", ratio))
    return found


class _Caller:
    """Implements ``RowCaller``."""

    def __init__(self, prompt: DiffusionPrompt[OdeParameters], cost: Cost) -> None:
        self.prompt = prompt
        self.cost = cost
        self.wanted = True
        self.snapshots = None

    def report(self, done: int, total: int) -> None:
        pass

    def show(self, picture: torch.Tensor) -> None:
        raise AssertionError("code2wav has no previews")

    def settle(self, result: OmniModelRunnerOutput | StageError) -> None:
        self.wanted = False
        if isinstance(result, StageError):
            raise result


def _prompt(length: int, seed: int, parameters: OdeParameters) -> DiffusionPrompt[OdeParameters]:
    request = _request(length)
    return DiffusionPrompt({"codes": request.codes}, {"voice": request.voice}, parameters, seed)


def _until_done(runner: GPUDiffusionModelRunner, prompt: DiffusionPrompt[OdeParameters]) -> None:
    caller = _Caller(prompt, runner.model.check(prompt))
    runner.add(caller)
    while caller.wanted:
        runner.execute_model()


def _compiled(ours: Token2Wav, runs: int) -> list[Figure]:
    """One evaluation of the transformer, plain and compiled with dynamic shapes, on batches of three shapes."""
    plain = MelDenoiser._velocities
    compiled: Any = torch.compile(plain, dynamic=True)
    moment = torch.tensor(0.3)
    found, differences, compiling = [], [], 0.0
    for lengths in (RAGGED, RAGGED[:1], SHORT):
        rows = [ours.begin(_request(length), OdeParameters()) for length in lengths]
        evaluations = [(moment, row.mel) for row in rows]
        with torch.inference_mode():
            begun = time.monotonic()
            result = torch.cat(compiled(ours.denoiser, rows, evaluations))
            compiling += time.monotonic() - begun
            expected = torch.cat(plain(ours.denoiser, rows, evaluations))
            differences.append(float((result - expected).abs().max()))
            sides: dict[str, Callable[[], object]] = {
                "plain": partial(plain, ours.denoiser, rows, evaluations),
                "compiled": partial(compiled, ours.denoiser, rows, evaluations),
            }
            times = _alternate(f"compiled, {len(lengths)} rows", sides, runs)
        ratio = _ratios(times["plain"], times["compiled"])
        found.append(figure(f"torch.compile, {len(lengths)} rows: compiled against plain", "x", ratio))
    found.append(figure("torch.compile: compiling, three shapes, by the clock", "s", [compiling]))
    found.append(figure("torch.compile: largest difference of an evaluation", "", [max(differences)]))
    return found


def _build(quick: bool) -> Any:
    from transformers import Qwen2_5OmniToken2WavConfig, Qwen2_5OmniToken2WavModel

    torch.manual_seed(0)
    width, layers = (64, 2) if quick else (256, 6)
    config = Qwen2_5OmniToken2WavConfig(
        dit_config={
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": width // 64,
            "head_dim": 64,
            "emb_dim": width // 2,
            "look_ahead_layers": [layers // 2],
            "look_backward_layers": [0, layers - 1],
            "enc_dim": width // 8,
            "enc_channels": [*[width // 4] * 4, width * 3 // 4],
            "enc_attention_channels": width // 16,
            "enc_se_channels": width // 16,
        },
        bigvgan_config={"upsample_initial_channel": width},
    )
    config._attn_implementation = "sdpa"
    model: Any = Qwen2_5OmniToken2WavModel(config)
    model.eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.normal_(std=1.5 / weight[0].numel() ** 0.5)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _request(length: int) -> CodecRequest:
    codes = torch.randint(0, 8000, (length,), generator=torch.Generator().manual_seed(length))
    return CodecRequest(codes, VOICE, seed=length)


def _mels(ours: Token2Wav, requests: Sequence[CodecRequest], parameters: OdeParameters) -> list[torch.Tensor]:
    rows = [ours.begin(request, parameters) for request in requests]
    for _ in range(parameters.steps - 1):
        ours.denoiser.step(rows)
    return [row.mel for row in rows]


def _sample(
    model: Any, speaker: Mapping[str, torch.Tensor], request: CodecRequest, parameters: OdeParameters
) -> torch.Tensor:
    """Transformers' own sampler."""
    device = next(model.parameters()).device
    mel: torch.Tensor = model.code2wav_dit_model.sample(
        speaker["cond"].to(device),
        speaker["ref_mel"].to(device),
        request.codes[None].to(device),
        num_steps=parameters.steps,
        guidance_scale=parameters.guidance_scale,
        sway_coefficient=parameters.sway_coefficient,
    )
    return mel


def _alternate(title: str, sides: Mapping[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Seconds per round of each side; a first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    with Progress(transient=True) as progress:
        for turn in progress.track(range(runs + 1), description=title):
            for name, work in sides.items():
                begun = _now()
                work()
                if turn:
                    times[name].append(_now() - begun)
    return times


def _each(work: Callable[[Any], object], items: Sequence[Any]) -> None:
    for item in items:
        work(item)


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.monotonic()
    return time.process_time()


def _ratios(others: Sequence[float], ours: Sequence[float]) -> list[float]:
    return [other / own for other, own in zip(others, ours, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--runs", type=int, default=5, help="rounds of each comparison (default 5)")
    parser.add_argument("--quick", action="store_true", help="a smaller model, one round: whether it works")
    arguments = parser.parse_args()
    runs = 1 if arguments.quick else arguments.runs
    report(figures(runs=runs, quick=arguments.quick), arguments.json)


if __name__ == "__main__":
    main()
