"""The omni demo: one job from text, sound and picture to text and speech."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile  # type: ignore[import-untyped]
from PIL import Image
from rich.console import Console
from rich.text import Text

from omni_jobs.cli.formats import duration_text, printable
from omni_jobs.cli.live import show_progress
from omni_jobs.client import Client, user_message
from omni_jobs.demo.checkpoints import tiny_checkpoint
from omni_jobs.errors import StageError

if TYPE_CHECKING:
    from omni_jobs.views import JobView

PROMPT = "What do you hear, and what do you see? Answer in one sentence."
SILENCE_RMS = 1e-3  # -60 dB of full scale
JOB_LIMIT_S = 1800.0
# A model with random weights seldom ends its answer.
TINY_STAGES = {"thinker": {"max_tokens": 48}, "talker": {"max_tokens": 128}}


class OmniDemo:
    """The demo of Qwen2.5-Omni's three stages: text, sound and picture to text and speech."""

    pipeline = "qwen2_5_omni"
    subject = "a text, a sound and a picture"
    out = "demo"

    def __init__(self, model: Path | None, prompt: str | None) -> None:
        self._model = model
        self._prompt = PROMPT if prompt is None else prompt

    def checkpoint(self, console: Console) -> Path:
        """Return the user's checkpoint directory, or the tiny one; raises ConfigError if that cannot be built."""
        if self._model is not None:
            return self._model
        console.print(
            "No --model given: a tiny Qwen2.5-Omni checkpoint with [bold]random weights[/bold] is used.\n"
            "Its text and its sound are noise, but every part that makes them is real."
        )
        return tiny_checkpoint(console)

    def request(self, scratch: Path) -> dict[str, Any]:
        """Write a second of sound and a small picture to ``scratch``, and return a request with them and the prompt."""
        sound, picture = scratch / "sweep.wav", scratch / "gradient.png"
        seconds = np.arange(16_000) / 16_000
        sweep = np.sin(2 * np.pi * (220 + 220 * seconds) * seconds)
        soundfile.write(sound, 0.4 * sweep, 16_000)
        ramp = np.linspace(0, 255, 112, dtype=np.uint8)
        Image.fromarray(np.dstack(np.broadcast_arrays(ramp[:, None], ramp[None, :], np.uint8(128)))).save(picture)
        return {
            "model": self.pipeline,
            "messages": [user_message(self._prompt, audio=[sound], images=[picture])],
            "modalities": ["text", "audio"],
            "stages": {} if self._model else TINY_STAGES,
            "seed": 0,
        }

    def follow(self, client: Client, job_id: str) -> JobView:
        """Wait for the job, show its progress meanwhile, and return the ended job. Raises TimeoutError after 30 min."""
        return show_progress(client, job_id, JOB_LIMIT_S)

    def show(self, console: Console, job: JobView, out: Path) -> None:
        """Print the text, and the sound's length and loudness. Raises StageError if one is missing or silent."""
        text = (job.result or {}).get("text")
        if not text:
            raise StageError("the job has no text")
        console.print(Text(printable(text)), soft_wrap=True)
        try:
            samples, rate = soundfile.read(out / "audio.wav")
        except (OSError, soundfile.LibsndfileError) as error:
            raise StageError(f"audio.wav cannot be read: {error}") from error
        rms = float(np.sqrt(np.mean(samples**2))) if len(samples) else 0.0
        if rms < SILENCE_RMS:
            raise StageError(f"the sound is silence: RMS {rms:.1e} of full scale")
        seconds = duration_text(len(samples) / rate)
        console.print(f"\naudio.wav: {seconds} of sound, RMS {rms:.3f} of full scale", highlight=False)
