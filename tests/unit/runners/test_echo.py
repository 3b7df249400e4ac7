import asyncio

import pytest

from omni_jobs.errors import ModelError
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.runners.echo.echo_processor import EchoProcessor, EchoPrompt
from workers.runners.echo.echo_runner import EchoRunner
from workers.runners.echo.parameters import EchoParameters
from workers.stages.engine_args import OmniEngineArgs
from workers.stages.types import Progress, StageInput

ARGS = OmniEngineArgs("first", None, "cpu", None, 8)


def prompt(text: str = "hi", *, capture: bool = True, seed: int = 1, **parameters: float) -> EchoPrompt:
    return EchoPrompt(text, 0, EchoParameters.model_validate(parameters), seed, capture)


async def started() -> EchoRunner:
    runner = EchoRunner(ARGS)
    await runner.start()
    return runner


def stage_input(messages: list[dict[str, object]]) -> StageInput:
    return StageInput("job-1", {"messages": messages}, (), {}, EchoParameters(), 1, True)


async def test_emits_seeded_bytes() -> None:
    runner = await started()
    one, again, other = [
        (await runner.run(prompt(payload_bytes=1000, seed=seed), lambda p: None)).multimodal_outputs["bytes"]
        for seed in (1, 1, 2)
    ]
    assert one.shape == (1000,)
    assert one.tolist() == again.tolist() != other.tolist()


async def test_without_a_consumer_no_bytes_are_made() -> None:
    output = await (await started()).run(prompt(payload_bytes=1 << 30, capture=False), lambda p: None)
    assert (output.text, output.multimodal_outputs) == ("hi", {})


async def test_waits_reports_and_can_be_cancelled() -> None:
    reports: list[Progress] = []
    await (await started()).run(prompt(delay_s=0.3), reports.append)
    assert reports[0].total == 300
    assert [report.done for report in reports] == sorted(report.done for report in reports)
    task = asyncio.create_task((await started()).run(prompt(delay_s=3600), reports.append))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_holds_thousands_at_once() -> None:
    runner = await started()
    outputs = await asyncio.gather(*(runner.run(prompt(capture=False), lambda p: None) for _ in range(2000)))
    assert {output.text for output in outputs} == {"hi"}


async def test_refuses_another_stage_s_input() -> None:
    import torch

    with pytest.raises(ModelError):
        await (await started()).run(DiffusionPrompt({"codes": torch.zeros(1)}, {}, OdeParameters(), 1), lambda p: None)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "user", "content": "你好"}], "你好"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "a"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "audio", "media": 0}]}], "a"),
        ([{"role": "system", "content": "x"}], ""),
    ],
)
def test_the_last_user_message_is_the_text(messages: list[dict[str, object]], text: str) -> None:
    assert EchoProcessor(None, None)(stage_input(messages)).text == text  # type: ignore[arg-type]
