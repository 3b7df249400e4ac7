"""code2wav on its own engine: Transformers' waveform, in whatever company."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_jobs.errors import ConfigError, EngineDead, ModelError, OmniJobsError, OutOfMemory
from tests.integration.runners.codec_prompts import (
    FAST,
    args,
    codec_prompt,
    codec_request,
    nothing,
    prompt,
    run_together,
    waveform,
)
from tests.oracles.reference import Reference, seeded_randn
from workers.models.qwen2_5_omni.denoising import CodecRequest, MelDenoiser, MelRow
from workers.models.qwen2_5_omni.parameters import OdeParameters, OdeSolver
from workers.models.qwen2_5_omni.token2wav import Token2Wav, load_token2wav
from workers.runners.ar.parameters import ArParameters
from workers.runners.ar.prompts import OmniTokensPrompt
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import StepBudget
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput, Progress

LENGTHS = (7, 50, 33, 64, 50)
VOICES = ("Chelsie", "Ethan", "Chelsie", "Chelsie", "Ethan")


def ragged(parameters: OdeParameters) -> list[DiffusionPrompt]:
    return [
        prompt(length, voice=voice, seed=n, parameters=parameters)
        for n, (length, voice) in enumerate(zip(LENGTHS, VOICES, strict=True))
    ]


class Gate:
    """Holds the engine's thread before the step of that number, and says when it is there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at_step: int = 1) -> None:
        self.loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.steps: list[list[int]] = []  # of each step the frames of its rows
        self._open = threading.Event()
        step = MelDenoiser.step

        def held(denoiser: MelDenoiser, rows: Sequence[MelRow]) -> None:
            if len(self.steps) == at_step:
                self.loop.call_soon_threadsafe(self.reached.set)
                if not self._open.wait(60):
                    raise TimeoutError("nobody opened the gate")
            self.steps.append([len(row.mel) for row in rows])
            step(denoiser, rows)

        monkeypatch.setattr(MelDenoiser, "step", held)

    def open(self) -> None:
        self._open.set()


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Path) -> Token2Wav:
    return load_token2wav(tiny_checkpoint, torch.device("cpu"), voices=["Chelsie", "Ethan"])


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> Reference:
    return Reference(tiny_checkpoint)


@pytest.fixture
async def runner(tiny_checkpoint: Path) -> AsyncIterator[DiffusionRunner]:
    runner = DiffusionRunner(args(tiny_checkpoint))
    await runner.start()
    yield runner
    await runner.close()


def ode_parameters(wanted: DiffusionPrompt) -> OdeParameters:
    assert isinstance(wanted.parameters, OdeParameters)
    return wanted.parameters


def transformers_waveform(reference: Reference, wanted: DiffusionPrompt) -> torch.Tensor:
    parameters, request = ode_parameters(wanted), codec_request(wanted)
    speaker = reference.model.speaker_map[request.voice]
    with seeded_randn(wanted.seed), torch.no_grad():
        result: torch.Tensor = reference.model.token2wav(
            request.codes[None],
            conditioning=speaker["cond"],
            reference_mel=speaker["ref_mel"],
            num_steps=parameters.steps,
            guidance_scale=parameters.guidance_scale,
            sway_coefficient=parameters.sway_coefficient,
        )
    return result


# The result


@pytest.mark.parametrize(
    "parameters",
    [
        OdeParameters(),
        OdeParameters(steps=2, guidance_scale=2.0, sway_coefficient=0.0),
        OdeParameters(steps=5, guidance_scale=0.0, sway_coefficient=0.7),
    ],
)
@pytest.mark.parametrize("voice", ["Chelsie", "Ethan"])
def test_one_request_is_transformers_own(
    model: Token2Wav, reference: Reference, parameters: OdeParameters, voice: str
) -> None:
    wanted = prompt(31, voice=voice, seed=2**63 - 1, parameters=parameters)
    ours = run_together(model, [wanted])[0].waveform()
    assert ours.dtype == torch.float32
    assert ours.shape == (31 * 480,)
    assert ours.std() > 0.01
    torch.testing.assert_close(ours, transformers_waveform(reference, wanted), rtol=0, atol=1e-5)


@pytest.mark.parametrize("parameters", [OdeParameters(), OdeParameters(steps=4, guidance_scale=0.0)])
def test_five_lengths_at_once_equal_one_by_one(
    model: Token2Wav, reference: Reference, parameters: OdeParameters
) -> None:
    prompts = ragged(parameters)
    together = run_together(model, prompts)
    for row, wanted in enumerate(prompts):
        alone = run_together(model, [wanted])[0].waveform()
        torch.testing.assert_close(together[row].waveform(), alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(together[1].waveform(), transformers_waveform(reference, prompts[1]), rtol=0, atol=1e-5)


def mel_of_a_plain_loop(reference: Reference, wanted: DiffusionPrompt) -> torch.Tensor:
    """[T, 80]: the textbook's steps over Transformers' own transformer, speaker, guidance and grid."""
    parameters, request = ode_parameters(wanted), codec_request(wanted)
    dit, speaker = reference.model.token2wav.code2wav_dit_model, reference.model.speaker_map[request.voice]
    frames = 2 * len(request.codes)

    def velocity(time: torch.Tensor, mel: torch.Tensor) -> torch.Tensor:
        both = dit(
            hidden_states=mel,
            quantized_code=request.codes[None],
            speaker_embedding=speaker["cond"][:, None].repeat(1, frames, 1),
            condition_vector=speaker["ref_mel"],
            time_step=time,
        )
        guided: torch.Tensor = both[:1] + (both[:1] - both[1:]) * parameters.guidance_scale
        return guided

    grid = torch.linspace(0, 1, parameters.steps)
    grid = grid + parameters.sway_coefficient * (torch.cos(torch.pi / 2 * grid) - 1 + grid)
    mel = torch.randn(1, frames, 80, generator=torch.Generator().manual_seed(wanted.seed))
    with torch.no_grad():
        for time, h in zip(grid[:-1], grid.diff(), strict=True):
            if parameters.solver == "euler":
                mel = mel + h * velocity(time, mel)
            elif parameters.solver == "midpoint":
                mel = mel + h * velocity(time + h / 2, mel + h / 2 * velocity(time, mel))
            else:
                k1 = velocity(time, mel)
                k2 = velocity(time + h / 3, mel + h * k1 / 3)
                k3 = velocity(time + 2 * h / 3, mel + h * (-k1 / 3 + k2))
                k4 = velocity(time + h, mel + h * (k1 - k2 + k3))
                mel = mel + h * (k1 + 3 * k2 + 3 * k3 + k4) / 8
    return mel[0]


def mel_of(model: Token2Wav, wanted: DiffusionPrompt) -> torch.Tensor:
    row = model.begin(codec_request(wanted), ode_parameters(wanted))
    for _ in range(ode_parameters(wanted).steps - 1):
        model.denoiser.step([row])
    return row.mel


@pytest.mark.parametrize("solver", ["rk4", "midpoint", "euler"])
def test_each_solver_is_the_textbooks(model: Token2Wav, reference: Reference, solver: OdeSolver) -> None:
    wanted = prompt(14, voice="Ethan", parameters=OdeParameters(solver=solver, steps=5))
    torch.testing.assert_close(mel_of(model, wanted), mel_of_a_plain_loop(reference, wanted), rtol=0, atol=1e-5)


def test_all_solvers_lead_to_the_same_mel(model: Token2Wav) -> None:
    """With the order each is known for: what is left of the way falls with that power of the steps."""

    def after(solver: OdeSolver, steps: int) -> torch.Tensor:
        return mel_of(model, prompt(2, parameters=OdeParameters(solver=solver, steps=steps + 1)))

    # Random weights make of time what no trained ones do: slowed down, a few steps are enough.
    hook = model._dit.time_embed.register_forward_pre_hook(lambda _, inputs: (inputs[0] / 1000,))
    try:
        exact = after("rk4", 32)
        ways: list[tuple[OdeSolver, int, int]] = [("euler", 1, 32), ("midpoint", 2, 16), ("rk4", 4, 4)]
        for solver, order, steps in ways:
            coarse, fine = ((after(solver, n) - exact).abs().max().item() for n in (steps, 2 * steps))
            assert math.log2(coarse / fine) > order - 0.5
            assert fine < 0.02 * exact.std().item()
    finally:
        hook.remove()


def test_rows_that_leave_do_not_change_the_others(model: Token2Wav) -> None:
    prompts = ragged(FAST)
    whole = run_together(model, prompts)
    # The longest leaves first, then the shortest: the others go on in a smaller step.
    left = run_together(model, prompts, {3: 1, 0: 0})
    assert [row for row in range(5) if left[row].result is not None] == [1, 2, 4]
    for row in (1, 2, 4):
        torch.testing.assert_close(left[row].waveform(), whole[row].waveform(), rtol=0, atol=1e-5)


def test_an_engine_that_all_leave_ends(model: Token2Wav) -> None:
    left = run_together(model, ragged(FAST), dict.fromkeys(range(5), 1))
    assert {(row.result, row.done) for row in left} == {(None, 1)}


def test_the_seed_decides(model: Token2Wav) -> None:
    prompts = [prompt(seed=5), prompt(seed=6), prompt(seed=5)]
    result = run_together(model, prompts)
    torch.testing.assert_close(result[0].waveform(), result[2].waveform(), rtol=0, atol=1e-6)
    assert not torch.allclose(result[0].waveform(), result[1].waveform(), atol=1e-3)


# What cannot run


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        (codec_prompt(torch.tensor([], dtype=torch.int64), "Ethan", FAST, 0), "codes", "no codes"),
        (codec_prompt(torch.tensor([1, -1]), "Ethan", FAST, 0), "codes", "code -1 at 1"),
        (codec_prompt(torch.tensor([8449]), "Ethan", FAST, 0), "codes", "code 8449 at 0"),
        (codec_prompt(torch.tensor([[1]]), "Ethan", FAST, 0), "codes", r"\[1, 1\]"),
        (codec_prompt(torch.tensor([1.0]), "Ethan", FAST, 0), "codes", "float32"),
        (codec_prompt(torch.zeros(16_385, dtype=torch.int64), "Ethan", FAST, 0), "codes", "32770 mel frames"),
        (codec_prompt(torch.tensor([1]), "نوبه", FAST, 0), "voice", "نوبه"),
    ],
)
async def test_a_wrong_prompt_names_the_field_and_the_runner_lives_on(
    runner: DiffusionRunner, wrong: DiffusionPrompt, field: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        await runner.run(wrong, nothing)
    assert caught.value.field == field
    assert len(waveform(await runner.run(prompt(3), nothing))) == 3 * 480


async def test_another_kind_of_input_is_refused(runner: DiffusionRunner) -> None:
    tokens = OmniTokensPrompt([1], {}, ArParameters(), 0, capture=False)
    with pytest.raises(ModelError, match="OmniTokensPrompt"):
        await runner.run(tokens, nothing)


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), OutOfMemory),
        (RuntimeError("could not create a primitive"), OutOfMemory),  # oneDNN's
        # Seen on a card that others had filled.
        (torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'", 2), OutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), OutOfMemory),
        (RuntimeError("the kernel is not implemented"), ModelError),
        (KeyError("a bug of the model"), ModelError),
        (ModelError("not this one", field="codes"), ModelError),
    ],
)
def test_a_step_that_fails_is_tried_row_by_row(
    model: Token2Wav, monkeypatch: pytest.MonkeyPatch, raised: Exception, error: type[OmniJobsError]
) -> None:
    """Only the row that cannot run even alone fails, and no row starts over."""
    step = MelDenoiser.step

    def fails_for_long_rows(denoiser: MelDenoiser, rows: Sequence[MelRow]) -> None:
        if any(len(row.mel) == 2 * 64 and row.steps_done == 1 for row in rows):
            raise raised
        step(denoiser, rows)

    prompts = ragged(FAST)
    whole = run_together(model, prompts)
    monkeypatch.setattr(MelDenoiser, "step", fails_for_long_rows)
    partly = run_together(model, prompts)
    assert isinstance(partly[3].result, error)
    for row in (0, 1, 2, 4):
        torch.testing.assert_close(partly[row].waveform(), whole[row].waveform(), rtol=0, atol=1e-5)
        assert partly[row].seen == [1, 2, 3]


def test_what_fails_at_the_beginning_or_the_end_fails_alone(model: Token2Wav, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, vocode = Token2Wav.begin, Token2Wav.vocode

    def does_not_begin(token2wav: Token2Wav, request: CodecRequest, parameters: OdeParameters) -> MelRow:
        if len(request.codes) == 33:
            raise ValueError("not this one")
        return begin(token2wav, request, parameters)

    def does_not_end(token2wav: Token2Wav, mels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if len(mels[0]) == 2 * 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return vocode(token2wav, mels)

    whole = run_together(model, ragged(FAST))
    monkeypatch.setattr(Token2Wav, "begin", does_not_begin)
    monkeypatch.setattr(Token2Wav, "vocode", does_not_end)
    partly = run_together(model, ragged(FAST))
    assert [type(row.result) for row in partly if not isinstance(row.result, OmniModelRunnerOutput)] == [
        ModelError,
        OutOfMemory,
    ]
    for row in (0, 1, 4):
        torch.testing.assert_close(partly[row].waveform(), whole[row].waveform(), rtol=0, atol=1e-5)


def test_after_a_lack_of_memory_steps_are_smaller(model: Token2Wav, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits one by one and not together costs one more try, not one for each step."""
    steps, step = list[int](), MelDenoiser.step

    def fits_two(denoiser: MelDenoiser, rows: Sequence[MelRow]) -> None:
        steps.append(len(rows))
        if len(rows) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        step(denoiser, rows)

    monkeypatch.setattr(MelDenoiser, "step", fits_two)
    budget = StepBudget(1000, 8)
    rows = run_together(model, [prompt(10, seed=n, parameters=OdeParameters(steps=4)) for n in range(4)], budget=budget)
    assert [row.seen for row in rows] == [[1, 2, 3, 4]] * 4
    assert steps == [4, 1, 1, 1, 1, 2, 2, 2, 2]
    assert budget.units == 40


async def test_a_dead_device_ends_the_runner(runner: DiffusionRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(_: MelDenoiser, rows: Sequence[MelRow]) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700)

    monkeypatch.setattr(MelDenoiser, "step", dies)
    results = await asyncio.gather(*(runner.run(wanted, nothing) for wanted in ragged(FAST)), return_exceptions=True)
    assert all(isinstance(result, EngineDead) for result in results)
    assert not runner.healthy
    with pytest.raises(EngineDead):
        await runner.run(prompt(), nothing)


@pytest.mark.parametrize(
    ("changes", "engine", "message"),
    [
        ({"voices": ("Chelsie", "Nobody")}, {}, "no speaker Nobody"),
        ({"component": "thinker"}, {}, "such a stage runs code2wav"),
        ({}, {"dtype": "bfloat16"}, "float32"),
        ({"path": Path("/nowhere")}, {}, "config.json"),
    ],
)
async def test_a_wrong_configuration_is_refused_at_start(
    tiny_checkpoint: Path, changes: dict[str, Any], engine: dict[str, Any], message: str
) -> None:
    good = args(tiny_checkpoint, **engine)
    model: dict[str, Any] = {
        "path": tiny_checkpoint,
        "family": "qwen2_5_omni",
        "component": "code2wav",
        "voices": ("Chelsie",),
    }
    wrong = OmniModelConfig(**(model | changes))

    async def start() -> None:
        runner = DiffusionRunner(OmniEngineArgs(good.stage, wrong, "cpu", None, 8, good.engine))
        try:
            await runner.start()
        finally:
            assert not runner.healthy
            await runner.close()

    with pytest.raises(ConfigError, match=message):
        await start()


@pytest.mark.parametrize("name", ["model.safetensors", "spk_dict.pt"])
async def test_a_broken_checkpoint_is_refused_at_start(tiny_checkpoint: Path, tmp_path: Path, name: str) -> None:
    for path in tiny_checkpoint.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(b"not what it was")
    runner = DiffusionRunner(args(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        await runner.start()
    assert caught.value.file == str(tmp_path / name)
    await runner.close()


# The engine


async def test_many_at_once(runner: DiffusionRunner, model: Token2Wav) -> None:
    """More than the queue holds: the rest waits its turn."""
    prompts = [prompt(5 + n, voice=VOICES[n % 2], seed=n) for n in range(12)]
    outputs = await asyncio.gather(*(runner.run(wanted, nothing) for wanted in prompts))
    for wanted, output in zip(prompts, outputs, strict=True):
        alone = run_together(model, [wanted])[0].waveform()
        torch.testing.assert_close(waveform(output), alone, rtol=0, atol=1e-5)


async def test_what_comes_together_runs_together_whatever_its_parameters(
    runner: DiffusionRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open()
    other = OdeParameters(steps=4, solver="euler", guidance_scale=0.0)
    prompts = [prompt(9), prompt(30), prompt(8, parameters=other), prompt(12), prompt(6, parameters=other)]
    await asyncio.gather(*(runner.run(wanted, nothing) for wanted in prompts))
    assert [sorted(rows) for rows in gate.steps] == [[12, 16, 18, 24, 60]] * 2 + [[12, 16]]


async def test_what_comes_later_takes_part_from_the_next_step_on(
    runner: DiffusionRunner, model: Token2Wav, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, at_step=3)
    long, short = prompt(9, parameters=OdeParameters(steps=10)), prompt(12, parameters=OdeParameters(steps=3))
    first = asyncio.create_task(runner.run(long, nothing))
    await gate.reached.wait()
    second = asyncio.create_task(runner.run(short, nothing))
    await asyncio.sleep(0)
    gate.open()
    found = waveform(await second), waveform(await first)
    assert [sorted(rows) for rows in gate.steps] == [[18]] * 4 + [[18, 24]] * 2 + [[18]] * 3
    torch.testing.assert_close(found[0], run_together(model, [short])[0].waveform(), rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1], run_together(model, [long])[0].waveform(), rtol=0, atol=1e-5)


async def test_progress_is_monotone_and_ends_at_its_total(runner: DiffusionRunner) -> None:
    seen: list[Progress] = []
    await runner.run(prompt(parameters=OdeParameters(steps=6)), seen.append)
    assert [progress.done for progress in seen] == [1, 2, 3, 4, 5, 6]
    assert {(progress.total, progress.unit) for progress in seen} == {(6, "steps")}


async def test_the_loop_stays_free(runner: DiffusionRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    running = asyncio.create_task(runner.run(prompt(), nothing))
    await gate.reached.wait()
    assert not running.done()
    gate.open()
    assert len(waveform(await running)) == 20 * 480


async def test_cancel_in_the_middle_frees_the_row_and_the_others_finish(
    runner: DiffusionRunner, model: Token2Wav, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    slow = OdeParameters(steps=5)
    prompts = ragged(slow)
    tasks = [asyncio.create_task(runner.run(wanted, nothing)) for wanted in prompts]
    await gate.reached.wait()
    tasks[3].cancel()
    await asyncio.sleep(0)
    assert not tasks[3].done()  # its row is in the step that runs
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await tasks[3]
    for n in (0, 1, 2, 4):
        found = waveform(await tasks[n])
        assert len(found) == 480 * LENGTHS[n]
    assert [128 in rows for rows in gate.steps[:4]] == [True, True, False, False]  # it left after the step that ran
    for n in (0, 1, 2, 4):
        alone = run_together(model, [prompts[n]])[0].waveform()
        torch.testing.assert_close(waveform(tasks[n].result()), alone, rtol=0, atol=1e-5)


async def test_a_waiting_prompt_that_is_cancelled_never_runs(
    runner: DiffusionRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    first = asyncio.create_task(runner.run(prompt(), nothing))
    await gate.reached.wait()
    waiting = [asyncio.create_task(runner.run(prompt(9 + n), nothing)) for n in range(9)]  # the last for the queue
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(*waiting, return_exceptions=True)
    await first
    assert len(waveform(await runner.run(prompt(), nothing))) == 20 * 480
    assert gate.steps == [[40]] * 4


async def test_close_during_work_stops_between_steps(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = DiffusionRunner(args(tiny_checkpoint, max_num_seqs=2))
    await runner.start()
    assert runner.healthy
    gate = Gate(monkeypatch)
    tasks = [asyncio.create_task(runner.run(wanted, nothing)) for wanted in ragged(FAST)]
    await gate.reached.wait()
    closing = asyncio.create_task(runner.close())
    results = await asyncio.gather(*tasks, return_exceptions=True)  # all are told at once
    assert all(isinstance(result, EngineDead) for result in results)
    assert not closing.done()
    gate.open()
    await closing
    assert len(gate.steps) == 2  # the one that was held was the last
    assert not runner.healthy
    await runner.close()
    with pytest.raises(EngineDead):
        await runner.run(prompt(), nothing)


async def test_close_without_start_is_harmless(tiny_checkpoint: Path) -> None:
    runner = DiffusionRunner(args(tiny_checkpoint))
    assert not runner.healthy
    with pytest.raises(EngineDead):
        await runner.run(prompt(), nothing)
    await runner.close()
