"""``EchoRunner``: a runner without a model, which echoes its prompt as text, sound or pictures. For tests."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from omni_jobs.pipelines.engine_settings import EngineSettings
from workers.runners.echo.answer import AnswerPrompt, answer
from workers.runners.echo.bars import BarsPrompt, MovingBarsPrompt, bars, moving_bars
from workers.runners.echo.echo_processor import EchoPrompt
from workers.runners.echo.tone import TonePrompt, tone
from workers.runners.in_process_runner import InProcessRunner
from workers.runners.runner import ProgressSink
from workers.stages.types import OmniModelRunnerOutput, Progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TICK_S = 0.2
_TEXT_CHARACTERS = 1000  # of the prompt's text, in the payload's values; all of it is in the request
_BLOCK_BYTES = 1 << 13
_IN_THREAD_BYTES = 1 << 20  # fewer are made faster than a thread is called


class EchoRunner(
    InProcessRunner[EchoPrompt | AnswerPrompt | TonePrompt | BarsPrompt | MovingBarsPrompt, EngineSettings]
):
    """Echoes prompts, any number at once, for stages without a model."""

    async def produce(
        self, prompt: EchoPrompt | AnswerPrompt | TonePrompt | BarsPrompt | MovingBarsPrompt, progress: ProgressSink
    ) -> OmniModelRunnerOutput:
        """Return what a prompt is made into: bytes and text, an answer, a tone, a picture or a video."""
        match prompt:
            case EchoPrompt():
                return await self._echo(prompt, progress)
            case AnswerPrompt():
                return await answer(prompt, self.on_thread, progress)
            case TonePrompt():
                return await tone(prompt, self.on_thread, progress)
            case BarsPrompt():
                return await bars(prompt, self.on_thread, progress)
            case MovingBarsPrompt():
                return await moving_bars(prompt, self.on_thread, progress)

    async def _echo(self, prompt: EchoPrompt, progress: ProgressSink) -> OmniModelRunnerOutput:
        """Wait for the prompt's ``delay_s`` seconds with progress in ms, then return an output with the prompt's text.

        Its ``values`` are the first 1000 characters as ``text``, and ``upstream_bytes``. If ``prompt.capture`` is set,
        it has a tensor ``bytes`` too: uint8 [``payload_bytes``], pseudo-random from the prompt's seed.
        """
        if prompt.parameters.delay_s:
            await self._wait(prompt.parameters.delay_s, progress)
        outputs = {}
        if prompt.capture:
            size = prompt.parameters.payload_bytes
            outputs["bytes"] = (
                await self.on_thread(lambda: _bytes(prompt.seed, size))
                if size > _IN_THREAD_BYTES
                else _bytes(prompt.seed, size)
            )
        return OmniModelRunnerOutput(
            text=prompt.text,
            multimodal_outputs=outputs,
            values={"text": prompt.text[:_TEXT_CHARACTERS], "upstream_bytes": prompt.upstream_bytes},
        )

    async def _wait(self, delay_s: float, progress: ProgressSink) -> None:
        total = round(delay_s * 1000)
        started = time.monotonic()
        while (left := delay_s - (time.monotonic() - started)) > 0:
            progress(Progress(done=round((delay_s - left) * 1000), total=total, unit="ms"))
            await asyncio.sleep(min(left, _TICK_S))


def _bytes(seed: int, size: int) -> NDArray[Any]:
    """Return ``size`` bytes that repeat one block, because benchmarks measure their transport and not their making."""
    if not size:
        return np.empty(0, dtype=np.uint8)
    block = np.random.PCG64(seed).random_raw(-(-min(size, _BLOCK_BYTES) // 8)).view(np.uint8)
    return np.resize(block, size)
