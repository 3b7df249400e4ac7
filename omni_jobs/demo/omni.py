"""The omni demo: one job from text, sound and picture to text and speech."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.text import Text

from omni_jobs.cli.formats import in_seconds, printable
from omni_jobs.cli.live import show_progress
from omni_jobs.client import Client, user_message
from omni_jobs.demo.checkpoints import tiny_checkpoint
from omni_jobs.errors import StageError

if TYPE_CHECKING:
    from omni_jobs.views import JobView

__all__ = ["OmniDemo"]

PROMPT = "What do you hear, and what do you see? Answer in one sentence."
SILENCE_RMS = 1e-3  # -60 dB of full scale
JOB_LIMIT_S = 1800.0
# A model with random weights seldom ends its answer.
TINY_STAGES = {"thinker": {"max_tokens": 48}, "talker": {"max_tokens": 128}}


class OmniDemo:
    """The demo of Qwen2.5-Omni's pipeline, which has three stages."""

    pipeline = "qwen2_5_omni"
    subject = "a text, a sound and a picture"
    out = "demo"

    def __init__(self, model: Path | None, prompt: str | None) -> None:
        self._model = model
        self._prompt = PROMPT if prompt is None else prompt

    def checkpoint(self, console: Console) -> Path:
        """Return the given checkpoint, or the tiny one. Raises ConfigError."""
        if self._model is not None:
            return self._model
        console.print(
            "No --model given: a tiny Qwen2.5-Omni checkpoint with [bold]random weights[/bold] is used.\n"
            "Its text and its sound are noise, but every part that makes them is real."
        )
        return tiny_checkpoint(console)

    def request(self, scratch: Path) -> dict[str, Any]:
        """Return a request with a second of sound and a small picture, written to ``scratch``, and the text."""
        sound, picture = scratch / "sweep.wav", scratch / "gradient.png"
        seconds = np.arange(16_000) / 16_000
        sweep = np.sin(2 * np.pi * (220 + 220 * seconds) * seconds)
        with wave.open(str(sound), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes((sweep * 12_000).astype("<i2").tobytes())
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
        """Wait for the job with its progress on the screen. Raises TimeoutError."""
        return show_progress(client, job_id, JOB_LIMIT_S)

    def show(self, console: Console, job: JobView, out: Path) -> None:
        """Print the text and the sound's loudness. Raises StageError if there is no text or no sound."""
        text = (job.result or {}).get("text")
        if not text:
            raise StageError("the job has no text")
        console.print(Text(printable(text)), soft_wrap=True)
        seconds, rms = loudness(out / "audio.wav")
        if rms < SILENCE_RMS:
            raise StageError(f"the sound is silence: RMS {rms:.1e} of full scale")
        console.print(f"\naudio.wav: {in_seconds(seconds)} of sound, RMS {rms:.3f} of full scale", highlight=False)


def loudness(path: Path) -> tuple[float, float]:
    """Return the duration in seconds and the RMS, as a fraction of full scale, of a 16-bit WAV. Raises StageError."""
    try:
        with wave.open(str(path), "rb") as file:
            if file.getsampwidth() != 2:
                raise StageError(f"{path.name} is not a 16-bit WAV")
            frames, rate = file.readframes(file.getnframes()), file.getframerate()
    except (OSError, EOFError, wave.Error) as error:
        raise StageError(f"{path.name} is not a WAV: {error}") from error
    samples = np.frombuffer(frames, dtype="<i2").astype(np.float64) / 32768
    return len(samples) / rate, float(np.sqrt(np.mean(samples**2))) if len(samples) else 0.0
