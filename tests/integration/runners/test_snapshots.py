"""code2wav's snapshots: a run that goes on from any of them ends in the same waveform, or begins anew and says why."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from omni_jobs.errors import ConfigError, ModelError, OmniJobsError, OutOfMemory
from omni_jobs.pipelines.declarations import ComponentDeclaration, Family
from tests.integration.runners.codec_prompts import args, nothing, prompt, waveform
from workers.models.qwen2_5_omni import family
from workers.models.qwen2_5_omni.code2wav import Code2Wav
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.runners.diffusion.diffusion_runner import DiffusionRunner
from workers.runners.diffusion.engine_process import EngineProcess
from workers.runners.runner import ResumableRunner
from workers.stages.types import Progress, Snapshot

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARAMETERS = OdeParameters(steps=9)  # eight steps of its solver
STEPS = 8
PROMPT = prompt(20, parameters=PARAMETERS, seed=5)


class Kept:
    """The snapshots of one run. Implements ``Snapshots``."""

    def __init__(self, newest: Snapshot | None = None) -> None:
        self.newest = newest
        self.taken: list[Snapshot] = []
        self.refused: list[OmniJobsError] = []
        self.missed: list[OmniJobsError] = []

    def put(self, snapshot: Snapshot) -> None:
        self.taken.append(snapshot)

    def refuse(self, error: OmniJobsError) -> None:
        self.newest = None
        self.refused.append(error)

    def miss(self, error: OmniJobsError) -> None:
        self.missed.append(error)


class Seen:
    """Keeps progress."""

    def __init__(self) -> None:
        self.progress: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.progress.append(progress)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineProcess]:
    spool = tmp_path_factory.mktemp("spool")
    engine = EngineProcess(replace(args(tiny_checkpoint, snapshot_every_steps=2), spool_dir=spool))
    assert isinstance(engine, ResumableRunner)
    assert engine.snapshot_origin is None
    await engine.start()
    yield engine
    await engine.close()
    assert not any(path.is_file() and path.name != ".lock" for path in spool.rglob("*"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def taken(engine: EngineProcess) -> tuple[torch.Tensor, list[Snapshot]]:
    """The waveform of a run without trouble, and its snapshots."""
    kept = Kept()
    output = await engine.run(PROMPT, nothing, kept)
    assert (kept.refused, kept.missed) == ([], [])
    return waveform(output), kept.taken


Taken = tuple[torch.Tensor, list[Snapshot]]


async def test_one_is_taken_every_so_many_steps_and_none_after_the_last(engine: EngineProcess, taken: Taken) -> None:
    assert [snapshot.steps_done for snapshot in taken[1]] == [2, 4, 6]
    assert engine.snapshot_origin == {"family": "qwen2_5_omni", "component": "code2wav", "dtype": None}


@pytest.mark.parametrize("number", range(3))
async def test_a_run_goes_on_from_any_of_them_bit_for_bit(engine: EngineProcess, taken: Taken, number: int) -> None:
    expected, snapshots = taken
    kept, seen = Kept(snapshots[number]), Seen()
    output = await engine.run(PROMPT, seen, kept)
    assert torch.equal(waveform(output), expected)
    assert (kept.refused, kept.missed) == ([], [])
    done = snapshots[number].steps_done
    assert [each.steps_done for each in kept.taken] == [steps for steps in (2, 4, 6) if steps > done]
    assert [(each.done, each.resumed_at) for each in seen.progress] == [
        (steps, done) for steps in range(done + 1, STEPS + 2)
    ]


async def test_in_company_it_is_the_same_within_a_hundred_thousandth(engine: EngineProcess, taken: Taken) -> None:
    expected, snapshots = taken
    others = [prompt(length, parameters=OdeParameters(steps=length)) for length in (7, 12)]
    output, *_ = await asyncio.gather(
        engine.run(PROMPT, nothing, Kept(snapshots[1])), *(engine.run(each, nothing) for each in others)
    )
    torch.testing.assert_close(waveform(output), expected, rtol=0, atol=1e-5)


def with_mel(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Snapshot], Snapshot]:
    return lambda snapshot: snapshot._replace(tensors={"mel": change(snapshot.tensors["mel"].clone())})  # type: ignore[union-attr]


def with_values(**values: Any) -> Callable[[Snapshot], Snapshot]:
    return lambda snapshot: snapshot._replace(values={**snapshot.values, **values})


def not_finite(mel: torch.Tensor) -> torch.Tensor:
    mel[3, 3] = torch.nan
    return mel


UNUSABLE: Mapping[str, tuple[Callable[[Snapshot], Snapshot], str]] = {
    "shape": (with_mel(lambda mel: mel[:-1]), "tensors.mel"),
    "dtype": (with_mel(lambda mel: mel.double()), "tensors.mel"),
    "not finite": (with_mel(not_finite), "tensors.mel"),
    "missing": (lambda snapshot: snapshot._replace(tensors={}), "tensors.mel"),
    "a list": (lambda snapshot: snapshot._replace(tensors={"mel": [snapshot.tensors["mel"]]}), "tensors.mel"),  # type: ignore[list-item]
    "model": (with_values(model="0" * 64), "values.model"),
    "version": (with_values(saved_by="code2wav 2"), "values.saved_by"),
    "seed": (with_values(seed=6), "values.seed"),
    "parameters": (with_values(parameters={"steps": 10}), "values.parameters"),
    "more steps": (with_values(steps_done=STEPS + 1), "values.steps_done"),
    "no steps": (with_values(steps_done=0), "values.steps_done"),
    "no number": (with_values(steps_done="4"), "values.steps_done"),
}


@pytest.mark.parametrize("what", UNUSABLE)
async def test_one_that_does_not_fit_is_refused_and_the_run_begins_anew(
    engine: EngineProcess, taken: Taken, what: str
) -> None:
    expected, snapshots = taken
    change, field = UNUSABLE[what]
    kept, seen = Kept(change(snapshots[1])), Seen()
    output = await engine.run(PROMPT, seen, kept)
    assert torch.equal(waveform(output), expected)
    [error] = kept.refused
    assert (type(error), error.field) == (ModelError, field)
    assert next((each.done, each.resumed_at) for each in seen.progress) == (1, None)
    assert len(kept.taken) == 3


async def test_a_cancelled_run_leaves_nothing_in_the_spool(engine: EngineProcess) -> None:
    running = asyncio.create_task(engine.run(prompt(20, parameters=OdeParameters(steps=1000)), nothing, kept := Kept()))
    async with asyncio.timeout(60):
        while len(kept.taken) < 3:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    await engine.run(prompt(2), nothing)  # by then the engine has sent all it had
    assert os.listdir(engine._spool.directory) == [".lock"]


# In this process


async def test_what_cannot_be_saved_costs_the_snapshot_alone(
    tiny_checkpoint: Path, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = DiffusionRunner(args(tiny_checkpoint, snapshot_every_steps=3))
    await runner.start()
    saves = 0

    def save(self: Code2Wav, row: object) -> Any:
        nonlocal saves
        saves += 1
        raise MemoryError if saves == 1 else ZeroDivisionError

    monkeypatch.setattr(Code2Wav, "save", save)
    kept = Kept()
    output = await runner.run(PROMPT, nothing, kept)
    torch.testing.assert_close(waveform(output), taken[0], rtol=0, atol=1e-5)
    assert [type(error) for error in kept.missed] == [OutOfMemory, ModelError]
    await runner.run(PROMPT, nothing)
    assert saves == 2, "who wants no snapshots pays for none"
    await runner.close()


async def test_a_promise_that_the_model_does_not_keep_is_a_config_error(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Code2Wav, "resume")
    runner = DiffusionRunner(args(tiny_checkpoint))
    with pytest.raises(ConfigError, match="declared resumable"):
        await runner.start()
    await runner.close()


@pytest.mark.parametrize("member", ["begin", "step", "finish", "check"])
async def test_a_model_that_is_not_whole_is_a_config_error_of_the_start(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, member: str
) -> None:
    monkeypatch.delattr(Code2Wav, member)
    runner = DiffusionRunner(args(tiny_checkpoint))
    with pytest.raises(ConfigError, match=f"is no diffusion model: it has no {member}"):
        await runner.start()
    await runner.close()


async def test_a_model_that_cannot_be_resumed_refuses_and_begins_anew(
    tiny_checkpoint: Path, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: Family = family.QWEN2_5_OMNI
    code2wav: ComponentDeclaration = replace(declared.components["code2wav"], resumable=False)
    other = replace(declared, components={**declared.components, "code2wav": code2wav})
    monkeypatch.setattr("workers.runners.declared_component.family", lambda name: other)
    monkeypatch.delattr(Code2Wav, "resume")
    runner = DiffusionRunner(args(tiny_checkpoint, snapshot_every_steps=1))
    await runner.start()
    assert runner.snapshot_origin is None
    kept = Kept(taken[1][0])
    await runner.run(PROMPT, nothing, kept)
    assert [error.field for error in kept.refused] == ["component"]
    assert kept.taken == []
    await runner.close()
