"""The omni demo: one job from text, sound and picture to text and speech."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile  # type: ignore[import-untyped]
from PIL import Image
from rich.console import Console
from rich.text import Text

from omni_jobs.cli.formats import printable
from omni_jobs.client import user_message
from omni_jobs.demo.checkpoints import tiny_checkpoint
from omni_jobs.demo.walk import Scene
from omni_jobs.errors import StageError

PROMPT = "What do you hear, and what do you see? Answer in one sentence."
PIPELINE = "qwen2_5_omni"
# A model with random weights seldom ends its answer.
TINY_STAGES = {"thinker": {"max_tokens": 48}, "talker": {"max_tokens": 128}}


class OmniDemo:
    """The demo of Qwen2.5-Omni's three stages: text, sound and picture to text and speech."""

    pipelines: Sequence[str] = ("qwen2_5_omni",)
    out = "demo-omni"

    def __init__(self, model: Path | None, prompt: str | None) -> None:
        self._model = model
        self._prompt = PROMPT if prompt is None else prompt

    def models(self, console: Console) -> dict[str, Path]:
        """Return the user's checkpoint directory, or the tiny one; raises ConfigError if that cannot be built."""
        if self._model is not None:
            return {PIPELINE: self._model}
        console.print(
            "No --model given: a tiny Qwen2.5-Omni checkpoint with [bold]random weights[/bold] is used.\n"
            "Its text and its sound are noise, but every part that makes them is real."
        )
        return {PIPELINE: tiny_checkpoint(console)}

    def run(self, scene: Scene) -> None:
        """Run one job, and check and show its text and its sound."""
        scene.title(f"One job over HTTP: a text, a sound and a picture to {scene.stack.url}/v1/jobs")
        job = scene.run_job(self._request(scene.scratch))
        text = (job.result or {}).get("text")
        if not text:
            raise StageError("the job has no text")
        scene.console.print(Text(printable(text)), soft_wrap=True)
        scene.show_results(job)

    def _request(self, scratch: Path) -> dict[str, Any]:
        """Write a second of sound and a small picture to ``scratch``, and return a request with them and the prompt."""
        sound, picture = scratch / "sweep.wav", scratch / "gradient.png"
        seconds = np.arange(16_000) / 16_000
        sweep = np.sin(2 * np.pi * (220 + 220 * seconds) * seconds)
        soundfile.write(sound, 0.4 * sweep, 16_000)
        ramp = np.linspace(0, 255, 112, dtype=np.uint8)
        Image.fromarray(np.dstack(np.broadcast_arrays(ramp[:, None], ramp[None, :], np.uint8(128)))).save(picture)
        return {
            "model": PIPELINE,
            "messages": [user_message(self._prompt, audio=[sound], images=[picture])],
            "modalities": ["text", "audio"],
            "stages": {} if self._model else TINY_STAGES,
            "seed": 0,
        }
