"""The omni demo: one job from text, sound and picture to text and speech."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile  # type: ignore[import-untyped]
from PIL import Image
from rich.console import Console
from rich.text import Text

from demo.checkpoints import CACHE
from demo.walk import walking
from omni_jobs.cli.terminal import printable
from omni_jobs.client import user_message
from omni_jobs.errors import StageError
from omni_jobs.stack.tiny_checkpoint import tiny_checkpoint

PROMPT = "What do you hear, and what do you see? Answer in one sentence."
# A model with random weights seldom ends its answer.
TINY_STAGES = {"thinker": {"max_tokens": 48}, "talker": {"max_tokens": 128}}


def omni_demo(console: Console, out: Path | None, model: Path | None, prompt: str | None) -> None:
    """Run one job through Qwen2.5-Omni's three stages, of the user's checkpoint or a tiny one.

    Raises OmniJobsError or TimeoutError.
    """
    models = {"qwen2_5_omni": model or _tiny_model(console)}
    with walking(console, out or CACHE / "demo-omni", list(models), models) as walk:
        walk.title(f"One job over HTTP: a text, a sound and a picture to {walk.stack.url}/v1/jobs")
        request = {
            "model": "qwen2_5_omni",
            "messages": [_message(PROMPT if prompt is None else prompt)],
            "modalities": ["text", "audio"],
            "stages": {} if model else TINY_STAGES,
            "seed": 0,
        }
        job = walk.run_job(request)
        text = (job.result or {}).get("text")
        if not text:
            raise StageError("the job has no text")
        console.print(Text(printable(text)), soft_wrap=True)
        walk.show_results(job)


def _tiny_model(console: Console) -> Path:
    console.print(
        "No --model given: a tiny Qwen2.5-Omni checkpoint with [bold]random weights[/bold] is used.\n"
        "Its text and its sound are noise, but every part that makes them is real."
    )
    with console.status("building the tiny checkpoint"):
        return tiny_checkpoint("qwen2_5_omni", CACHE)


def _message(prompt: str) -> dict[str, Any]:
    """Return a message with the prompt, a second of sound and a small picture."""
    seconds = np.arange(16_000) / 16_000
    ramp = np.linspace(0, 255, 112, dtype=np.uint8)
    gradient = np.dstack(np.broadcast_arrays(ramp[:, None], ramp[None, :], np.uint8(128)))
    with tempfile.TemporaryDirectory() as directory:
        sound, picture = Path(directory, "sweep.wav"), Path(directory, "gradient.png")
        soundfile.write(sound, 0.4 * np.sin(2 * np.pi * (220 + 220 * seconds) * seconds), 16_000)
        Image.fromarray(gradient).save(picture)
        return user_message(prompt, audio=[sound], images=[picture])
