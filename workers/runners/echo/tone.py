"""A stage makes a tone: as long as the text, so that it can be told from another, and as high as the voice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from omni_jobs.prompts.messages import last_user_text
from workers.runners.echo.pace import StepPace
from workers.runners.echo.parameters import ToneParameters
from workers.runners.echo.tone_length import tone_s
from workers.runners.runner import ProgressSink
from workers.stages.flow_processor import FlowProcessor
from workers.stages.types import OmniModelRunnerOutput, Progress, StageInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workers.runners.echo.threads import Threads

TONE_HZ: Final = 24_000
"""The sampling rate of a tone."""

VOICES: Final[Mapping[str, float]] = {"alloy": 440.0, "echo": 660.0, "nova": 880.0, "onyx": 220.0}
"""The frequency of each voice in Hz; any other speaks like the first."""

_LOUDNESS = 0.5  # of full scale
_FADE = TONE_HZ // 200  # samples from silence to full loudness, and back, so that nothing clicks


class TonePrompt(NamedTuple):
    """The engine prompt of a stage that makes a tone."""

    seconds: float
    frequency: float
    delay_s: float


class ToneProcessor(FlowProcessor):
    """Measures the last user message. Its name in a stage config is ``tone``."""

    def __call__(self, stage_input: StageInput[ToneParameters]) -> TonePrompt:
        """Return the prompt. Raises InvalidRequest for a text that would sound for too long."""
        parameters = stage_input.parameters
        frequency = parameters.frequency or VOICES.get(str(stage_input.voice), VOICES["alloy"])
        return TonePrompt(tone_s(last_user_text(stage_input.request), parameters), frequency, parameters.delay_s)


async def tone(prompt: TonePrompt, on_thread: Threads, progress: ProgressSink) -> OmniModelRunnerOutput:
    """Return ``waveform``, float32 [S], and its ``sampling_rate``, with progress in seconds of sound."""
    samples = np.empty(round(prompt.seconds * TONE_HZ), np.float32)
    total = math.ceil(prompt.seconds)
    pace = StepPace(prompt.delay_s, total)
    for second in range(total):
        progress(Progress(second, total, "seconds"))
        await on_thread(partial(_sound, samples, second * TONE_HZ, (second + 1) * TONE_HZ, prompt.frequency))
        await pace.wait_for(second + 1)
    fade = np.linspace(0, 1, _FADE, dtype=np.float32)
    samples[:_FADE] *= fade
    samples[-_FADE:] *= fade[::-1]
    progress(Progress(total, total, "seconds"))
    return OmniModelRunnerOutput(multimodal_outputs={"waveform": samples}, values={"sampling_rate": TONE_HZ})


def _sound(samples: NDArray[Any], begin: int, end: int, frequency: float) -> None:
    """Write the tone's samples from ``begin`` to ``end``, as far as there are some."""
    at = np.arange(begin, min(end, len(samples)))
    samples[begin:end] = _LOUDNESS * np.sin(2 * np.pi * frequency / TONE_HZ * at)
