"""``RELAY``, a runner without a model whose stages' answers depend on the payload that the stage before handed them."""

import os
from pathlib import Path

import pytest

from omni_jobs.pipelines.declarations import ProcessorDeclaration, RunnerDeclaration
from omni_jobs.prompts.messages import last_user_text
from workers.runners.echo.echo_processor import EchoPrompt
from workers.runners.echo.parameters import EchoParameters
from workers.stages.flow_processor import FlowProcessor
from workers.stages.types import StageInput

ROOT = Path(__file__).parents[1]


class SumBytesProcessor(FlowProcessor):
    """Makes a prompt of the message and of the sum of the bytes that the stage before made."""

    def __call__(self, stage_input: StageInput[EchoParameters]) -> EchoPrompt:
        made = self.information(stage_input, "bytes").tensors["bytes"].numpy()
        return prompt_of(stage_input, f"{last_user_text(stage_input.request)}: {len(made)} bytes, {made.sum()} in all")


class ReverseTextProcessor(FlowProcessor):
    """Makes a prompt of the words that the stage before made, the last first."""

    def __call__(self, stage_input: StageInput[EchoParameters]) -> EchoPrompt:
        made = self.information(stage_input, "text").tensors["text"].numpy()
        return prompt_of(stage_input, " ".join(reversed(made.tobytes().decode().split())))


def prompt_of(stage_input: StageInput[EchoParameters], text: str) -> EchoPrompt:
    return EchoPrompt(text, 0, stage_input.parameters, stage_input.seed, stage_input.capture)


RELAY = RunnerDeclaration(
    implementation="workers.runners.echo.echo_runner:EchoRunner",
    parameters="workers.runners.echo.parameters:EchoParameters",
    processors={
        "sum_bytes": ProcessorDeclaration(f"{__name__}:SumBytesProcessor", "relay", consumes=frozenset({"bytes"})),
        "reverse_text": ProcessorDeclaration(f"{__name__}:ReverseTextProcessor", "relay", consumes=frozenset({"text"})),
    },
    produces=frozenset({"text"}),
    blocking_prompts=False,
)


def install(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the runner for this process and those that it starts."""
    found = directory / "relay-1.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: relay\nVersion: 1\n", encoding="utf-8")
    entry = f"[omni_jobs.runners]\nrelay = {__name__}:RELAY\n"
    (found / "entry_points.txt").write_text(entry, encoding="utf-8")
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(directory), str(ROOT)]))
