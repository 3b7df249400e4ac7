"""The example diffusion model on the engine: rows in company, saved and resumed, and shown while they are under way."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import sys
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from omni_jobs.errors import ConfigError, ModelError, StageError
from tests.oracles.tinted import metadata
from workers.execution.preview import Preview
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_process import EngineProcess
from workers.runners.diffusion.engine_settings import DiffusionEngine
from workers.runners.diffusion.gpu_diffusion_model_runner import GPUDiffusionModelRunner
from workers.runners.diffusion.model import Cost, PreviewingModel, ResumableModel
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.diffusion.step_budget import StepBudget
from workers.runners.runner import CURRENT_RUN
from workers.stages.engine_args import OmniEngineArgs, OmniModelConfig
from workers.stages.types import OmniModelRunnerOutput, Progress

EXAMPLE = Path(__file__).parents[3] / "examples" / "pastel"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny checkpoint, with the example installed."""
    with pytest.MonkeyPatch.context() as patch:
        for path in (metadata(tmp_path_factory.mktemp("site"), EXAMPLE), EXAMPLE):
            patch.syspath_prepend(str(path))
        from pastel.tiny_checkpoint import build_tiny_checkpoint

        yield build_tiny_checkpoint(tmp_path_factory.mktemp("pastel"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "pastel"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def pastel(checkpoint: Path) -> Any:
    return load(checkpoint)


def load(checkpoint: Path) -> Any:
    from pastel.model import load_pastel

    return load_pastel(OmniModelConfig(checkpoint, "pastel", None), torch.device("cpu"), None)


def prompt(text: str = "a lighthouse", seed: int = 1, *, previews: bool = False, **parameters: Any) -> DiffusionPrompt:
    from pastel.parameters import PastelParameters

    return DiffusionPrompt({}, {"text": text}, PastelParameters(**parameters), seed, previews)


class Caller:
    """Keeps what comes of a row; after ``leaves_after`` steps nobody waits for it."""

    def __init__(self, prompt: DiffusionPrompt, cost: Cost, leaves_after: int = 1 << 30) -> None:
        self.prompt = prompt
        self.cost = cost
        self.snapshots = None
        self.steps = 0
        self.pictures: dict[int, torch.Tensor] = {}  # by the steps that were done
        self.result: OmniModelRunnerOutput | StageError | None = None
        self._leaves_after = leaves_after

    @property
    def wanted(self) -> bool:
        return self.result is None and self.steps < self._leaves_after

    def report(self, done: int, total: int) -> None:
        self.steps = done

    def show(self, picture: torch.Tensor) -> None:
        self.pictures[self.steps] = picture

    def settle(self, result: OmniModelRunnerOutput | StageError) -> None:
        self.result = result

    def pixels(self) -> torch.Tensor:
        assert isinstance(self.result, OmniModelRunnerOutput), self.result
        found: torch.Tensor = self.result.multimodal_outputs["pixels"]
        return found


def run(
    pastel: Any, prompts: Sequence[DiffusionPrompt], leaves: Mapping[int, int] | None = None, **engine: Any
) -> list[Caller]:
    budget = StepBudget(pastel.max_batch_cost, 8)
    runner = GPUDiffusionModelRunner(pastel, torch.device("cpu"), budget, DiffusionEngine(**engine))
    callers = [Caller(each, pastel.check(each), (leaves or {}).get(n, 1 << 30)) for n, each in enumerate(prompts)]
    for caller in callers:
        runner.add(caller)
    while runner.execute_model():
        pass
    return callers


# Rows


@pytest.mark.parametrize("jump", [2, 5, 100])
def test_a_model_whose_rows_jump_fails_them_and_no_others(
    pastel: Any, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    step = pastel.step

    def jumping(rows: Sequence[Any]) -> None:
        step(rows)
        for row in rows:
            row.steps_done += (jump - 1) * (row.seed == 13)

    monkeypatch.setattr(pastel, "step", jumping)
    wrong, good = run(pastel, [prompt(seed=13, steps=5), prompt(seed=1, steps=5)])
    assert isinstance(wrong.result, ModelError)
    assert wrong.result.field == "steps_done"
    assert isinstance(good.result, OmniModelRunnerOutput)


@pytest.mark.parametrize("begun", [1, 4, 9, -1, "0", None])
def test_a_row_that_does_not_begin_at_its_first_step_fails(
    pastel: Any, monkeypatch: pytest.MonkeyPatch, begun: Any
) -> None:
    begin = pastel.begin

    def beginning(given: DiffusionPrompt) -> Any:
        row = begin(given)
        row.steps_done = begun
        return row

    monkeypatch.setattr(pastel, "begin", beginning)
    (wrong,) = run(pastel, [prompt(steps=4)])
    assert isinstance(wrong.result, ModelError)
    assert wrong.result.field == "steps_done"


pictures = st.fixed_dictionaries(
    {
        "text": st.sampled_from(["a lighthouse", "night", "用一句话"]),
        "seed": st.integers(0, 2**63 - 1),
        "width": st.sampled_from([16, 24]),
        "steps": st.integers(1, 8),
        "guidance_scale": st.floats(0, 20),
    }
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(pictures, min_size=2, max_size=12), st.dictionaries(st.integers(0, 11), st.integers(0, 4), max_size=4))
def test_a_picture_is_the_one_it_is_alone(pastel: Any, wanted: list[dict[str, Any]], leaves: dict[int, int]) -> None:
    widths = list[set[int]]()
    step = pastel.step

    def noted(rows: Sequence[Any]) -> None:
        widths.append({row.latents.shape[2] for row in rows})
        step(rows)

    prompts = [prompt(**each) for each in wanted]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pastel, "step", noted)
        together = run(pastel, prompts, leaves)
    assert {len(each) for each in widths} <= {1}  # sizes never share a step
    for number, row in enumerate(together):
        if leaves.get(number, row.cost.steps) < row.cost.steps:
            assert row.result is None
        elif row.result is not None:
            assert torch.equal(row.pixels(), run(pastel, [prompts[number]])[0].pixels())


def test_a_resumed_picture_is_the_same_to_the_last_bit(pastel: Any, checkpoint: Path) -> None:
    assert isinstance(pastel, ResumableModel)
    wanted = prompt(steps=7)
    row = pastel.begin(wanted)
    for _ in range(3):
        pastel.step([row])
    saved = pastel.save(row)
    other = load(checkpoint)
    resumed = other.resume(wanted, saved.tensors, json.loads(json.dumps(saved.values)))
    assert resumed.steps_done == 3
    for _ in range(4):
        pastel.step([row])
        other.step([resumed])
    assert torch.equal(row.latents, resumed.latents)
    for wrong, field in ((prompt(steps=8), "values.parameters"), (prompt(steps=7, seed=2), "values.seed")):
        with pytest.raises(ModelError) as caught:
            other.resume(wrong, saved.tensors, saved.values)
        assert caught.value.field == field


# Previews


def count_previews(pastel: Any, patch: pytest.MonkeyPatch) -> list[int]:
    """The steps that were done at each preview that is computed."""
    computed, preview = list[int](), pastel.preview

    def counted(row: Any) -> torch.Tensor:
        computed.append(row.steps_done)
        found: torch.Tensor = preview(row)
        return found

    patch.setattr(pastel, "preview", counted)
    return computed


def test_nothing_is_computed_when_nobody_asks(pastel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = count_previews(pastel, monkeypatch)
    run(pastel, [prompt(seed=seed, steps=12) for seed in range(3)])
    assert computed == []


def test_previews_come_every_few_steps_to_those_who_ask(pastel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = count_previews(pastel, monkeypatch)
    quiet, asks = run(
        pastel,
        [prompt(steps=12), prompt(previews=True, steps=12, width=32)],
        preview_every_steps=4,
    )
    assert quiet.pictures == {}
    assert computed == [4, 8]  # after 12 there is the picture itself
    assert [(steps, each.dtype, each.shape) for steps, each in asks.pictures.items()] == [
        (4, torch.uint8, (8, 4, 3)),
        (8, torch.uint8, (8, 4, 3)),
    ]
    assert torch.equal(asks.pixels(), run(pastel, [asks.prompt])[0].pixels())


def test_a_preview_is_the_picture_made_small(pastel: Any) -> None:
    """Each of its pixels has the mean colour of the 64 that it stands for; the logistic function comes after."""
    row = pastel.begin(prompt())
    whole = torch.logit(pastel.network.pixels(row.latents).double() / 255, eps=1 / 512)
    small = torch.sigmoid(whole.unfold(0, 8, 8).unfold(1, 8, 8).mean((3, 4))) * 255
    assert (pastel.preview(row).double() - small).abs().max() < 2
    assert small.std() > 5


def raised(error: Exception) -> torch.Tensor:
    raise error


def test_a_preview_on_a_dead_device_ends_the_engine(pastel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700)
    monkeypatch.setattr(pastel, "preview", lambda row: raised(error))
    with pytest.raises(torch.AcceleratorError, match="illegal"):
        run(pastel, [prompt(previews=True)])


@pytest.mark.parametrize(
    "broken",
    [
        lambda row: torch.zeros(3, 8, 8, dtype=torch.uint8),
        lambda row: torch.zeros(8, 8, 3),
        lambda row: 1 / 0,
        lambda row: raised(torch.AcceleratorError("CUDA error: out of memory", 2)),
    ],
)
def test_a_preview_that_fails_is_left_out(
    pastel: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: Any
) -> None:
    monkeypatch.setattr(pastel, "preview", broken)
    (row,) = run(pastel, [prompt(previews=True)])
    assert row.pictures == {}
    row.pixels()
    assert "no preview" in caplog.text


def test_a_model_that_lacks_what_previews_need_is_asked_once(
    pastel: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def lacks(row: Any) -> torch.Tensor:
        asked.append(row)
        raise ConfigError("the checkpoint lacks this file", file="vae/config.json")

    monkeypatch.setattr(pastel, "preview", lacks)
    rows = run(
        pastel,
        [prompt(previews=True, steps=12, seed=seed) for seed in range(2)],
        preview_every_steps=3,
    )
    assert len(asked) == 1
    assert "no previews until the engine starts again: vae/config.json: the checkpoint lacks this file" in caplog.text
    for row in rows:
        row.pixels()


def test_a_large_preview_is_thinned(pastel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pastel, "preview", lambda row: torch.zeros(300, 200, 3, dtype=torch.uint8))
    (row,) = run(pastel, [prompt(previews=True)])
    assert [each.shape for each in row.pictures.values()] == [(100, 67, 3)]


def test_a_model_without_previews_runs_jobs_that_ask(pastel: Any) -> None:
    class Plain:
        max_batch_cost, check, begin, step, finish = 1, pastel.check, pastel.begin, pastel.step, pastel.finish

    assert not isinstance(Plain(), PreviewingModel)
    (row,) = run(Plain(), [prompt(previews=True)])
    row.pixels()


def args(checkpoint: Path, spool: Path | None = None) -> OmniEngineArgs:
    model = OmniModelConfig(checkpoint, "pastel", None)
    return OmniEngineArgs("draw", model, "cpu", None, 4, DiffusionEngine(preview_every_steps=3), spool_dir=spool)


@pytest.fixture(params=[DiffusionRunner, EngineProcess])
async def runner(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path: Path
) -> AsyncIterator[DiffusionRunner | EngineProcess]:
    runner = request.param(args(checkpoint, tmp_path))
    await runner.start()
    yield runner
    await runner.close()


async def test_progress_carries_the_newest_preview(
    runner: DiffusionRunner | EngineProcess, pastel: Any, tmp_path: Path
) -> None:
    wanted, seen = prompt(previews=True), list[Progress]()
    quiet = list[Progress]()
    await asyncio.gather(runner.run(wanted, seen.append), runner.run(prompt(seed=2), quiet.append))
    assert {each.picture for each in quiet} == {None}
    first = {each.done: each.picture for each in reversed(seen) if each.picture is not None}
    assert sorted(first) == list(range(3, 12))  # from the first preview on all progress has one
    assert len({id(each) for each in first.values()}) == 3  # the pictures after 3, 6 and 9 steps
    row = pastel.begin(wanted)
    for _ in range(9):
        pastel.step([row])
    assert seen[-1].picture is not None
    assert torch.equal(seen[-1].picture, pastel.preview(row))
    if isinstance(runner, EngineProcess):
        assert [path for path in runner._spool.directory.iterdir() if path.name != ".lock"] == []


def test_the_executor_encodes_each_preview_once() -> None:
    preview, picture = Preview(), torch.full((6, 5, 3), 200, dtype=torch.uint8)
    url = preview.url(picture)
    assert url is not None
    kind, _, data = url.partition(",")
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(b64decode(data))).size == (5, 6)
    assert preview.url(picture) is url
    assert preview.url(picture.clone()) is not url
    assert preview.url(picture[0]) is None, "one that is no picture is left out"
    assert preview.url(picture.numpy()) == url, "a runner without torch gives numpy's"


async def test_a_step_that_hangs_keeps_its_run_and_those_behind_it_from_ending(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the executor can tell that the engine hangs, and whose row it computes."""
    from pastel.model import Pastel

    hangs, may_end = threading.Event(), threading.Event()
    step = Pastel.step

    def hang(self: Any, rows: Sequence[Any]) -> None:
        hangs.set()
        may_end.wait(60)
        step(self, rows)

    def run(stage_run: int) -> asyncio.Task[OmniModelRunnerOutput]:
        context = contextvars.copy_context()
        context.run(CURRENT_RUN.set, stage_run)
        return asyncio.create_task(runner.run(prompt(seed=stage_run), lambda progress: None), context=context)

    monkeypatch.setattr(Pastel, "step", hang)
    model = OmniModelConfig(checkpoint, "pastel", None)
    computing: list[frozenset[int]] = []
    runner = DiffusionRunner(OmniEngineArgs("draw", model, "cpu", None, 4, DiffusionEngine()), computing.append)
    await runner.start()
    try:
        culprit = run(1)
        await asyncio.to_thread(hangs.wait, 60)
        behind = run(2)
        await asyncio.sleep(0)
        culprit.cancel()
        behind.cancel()
        assert not (await asyncio.wait({culprit, behind}, timeout=0.2))[0]
        assert computing[-1] == {1}
        may_end.set()
        async with asyncio.timeout(60):
            await asyncio.wait({culprit, behind})
        assert culprit.cancelled()
        assert behind.cancelled()
        assert (await run(3)).multimodal_outputs["pixels"].shape == (64, 64, 3)
    finally:
        may_end.set()
        await runner.close()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_what_would_end_the_engine_ends_its_row_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    from pastel.model import Pastel

    step = Pastel.step

    def escape(self: Any, rows: Sequence[Any]) -> None:
        if any(row.seed == 1 for row in rows):
            raise error
        step(self, rows)

    monkeypatch.setattr(Pastel, "step", escape)
    model = OmniModelConfig(checkpoint, "pastel", None)
    runner = DiffusionRunner(OmniEngineArgs("draw", model, "cpu", None, 4, DiffusionEngine()))
    await runner.start()
    try:
        runs = [runner.run(prompt(seed=seed), lambda progress: None) for seed in (1, 2)]
        async with asyncio.timeout(60):
            failed, drawn = await asyncio.gather(*runs, return_exceptions=True)
        assert isinstance(failed, ModelError)
        assert error.__name__ in str(failed)
        assert isinstance(drawn, OmniModelRunnerOutput)
        assert runner.healthy
    finally:
        await runner.close()
