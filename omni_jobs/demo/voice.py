"""The voice demo: a question spoken, an answer spoken, then the same again while a worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from omni_jobs.client import user_message
from omni_jobs.demo.checkpoints import smollm2_checkpoint
from omni_jobs.demo.conversation import Conversation
from omni_jobs.demo.text import SMOLLM2_SAMPLING
from omni_jobs.demo.walk import Scene
from omni_jobs.errors import StageError
from omni_jobs.states import StageRunState

if TYPE_CHECKING:
    from omni_jobs.views import JobView, StageRunView

QUESTION = "What should I do when I cannot sleep at night?"
MANNER = "You are a helpful assistant. Answer in one or two short sentences."
VICTIM = "listen"
"""The stage whose worker is killed: it starts anew within seconds."""

KILLS = 5  # a recording is heard in half a second, so a kill may come too late


class VoiceDemo:
    """The demo of real weights on a CPU: Whisper hears, SmolLM2 thinks, and a voice speaks."""

    pipelines: Sequence[str] = ("speech", "voice")
    out = "demo"

    def __init__(self, model: Path | None, prompt: str | None, audio: Path | None) -> None:
        """Ask what is said in ``audio``, or else speak ``prompt`` and ask that. ``model``: the one that thinks."""
        self._model = model
        self._question = QUESTION if prompt is None else prompt
        self._audio = audio

    def models(self, console: Console) -> dict[str, Path]:
        """Return the directory of the model that thinks; those that hear and speak are in installed packages."""
        return {"voice.think": self._model or smollm2_checkpoint(console)}

    def run(self, scene: Scene) -> None:
        """Ask, show what was heard and the answer as it grows; ask again, kill a worker, and compare the answers."""
        recording = self._audio or self._speak(scene)
        request = {
            "model": "voice",
            "messages": [{"role": "system", "content": MANNER}, user_message(audio=[recording])],
            "modalities": ["text", "audio"],
            "stages": {} if self._model else {"think": SMOLLM2_SAMPLING},
            "seed": 0,
        }
        scene.title(f"One job over HTTP: {recording.name} to {scene.stack.url}/v1/jobs")
        job = _converse(scene, request)
        scene.show_results(job)
        scene.title(f"The same again, and the worker of the stage {VICTIM} is killed while it listens")
        again = _run_with_a_kill(scene, request)
        _compare(scene.console, job, again)

    def _speak(self, scene: Scene) -> Path:
        """Make a recording of the question with a job of its own, and return its file. Raises StageError."""
        scene.title(f"The question, spoken by the pipeline speech: {self._question}")
        request = {
            "model": "speech",
            "messages": [{"role": "user", "content": self._question}],
            "modalities": ["audio"],
            "seed": 0,
        }
        job = scene.run_job(request)
        (artifact,) = job.artifacts
        file = scene.out / f"question{Path(artifact.name).suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        scene.client.save_artifact(job, artifact.name, file)
        scene.console.print(f"{file}", highlight=False, soft_wrap=True)
        return file


def _converse(scene: Scene, request: dict[str, Any]) -> JobView:
    """Run the request, and print what was heard, and the answer while it grows. Return the completed job.

    Raises StageError if nothing was heard, or the answer is empty.
    """
    conversation = Conversation(scene.console)

    def update(job: JobView) -> None:
        heard = _heard(job.made)
        if heard:
            conversation.ask(heard.strip())
            conversation.follow(_stage(job, "think"))

    job = scene.run_job(request, on_update=update)
    heard, said = _heard(job.made), job.made.get("text")
    if not heard or not said:
        raise StageError("nothing was heard" if not heard else "the answer is empty")
    conversation.ask(heard.strip())
    conversation.end(said)
    return job


def _heard(made: dict[str, Any]) -> str | None:
    heard: str | None = (made.get("texts") or {}).get("listen")
    return heard


def _run_with_a_kill(scene: Scene, request: dict[str, Any]) -> JobView:
    """Run the request while a worker is killed in the middle of it, and return the completed job.

    A kill that comes too late is tried again with a new job. Raises StageError if all come too late.
    """
    for _ in range(KILLS):
        killed = False

        def kill(job: JobView) -> None:
            nonlocal killed
            if not killed and _stage(job, VICTIM).status == StageRunState.RUNNING:
                killed = True
                os.kill(_worker_pid(scene), signal.SIGKILL)

        job = scene.run_job(request, on_update=kill)
        stage = _stage(job, VICTIM)
        if stage.attempt > 1:
            errors = ", ".join(error.code for error in stage.errors)
            scene.console.print(f"{VICTIM}: attempt {stage.attempt} succeeded, after {errors}", highlight=False)
            return job
    raise StageError(f"no worker died while it ran {VICTIM}")


def _worker_pid(scene: Scene) -> int:
    for child in scene.stack.children():
        if child.name == f"worker voice.{VICTIM}" and child.pid is not None:
            return child.pid
    raise StageError("its worker is not running", stage=VICTIM)


def _compare(console: Console, first: JobView, second: JobView) -> None:
    """Print that two jobs gave the same. Raises StageError if they did not."""
    if (first.result or {}).get("text") != (second.result or {}).get("text"):
        raise StageError("the second answer is another text")
    if [each.digest for each in first.artifacts] != [each.digest for each in second.artifacts]:
        raise StageError("the second answer sounds otherwise")
    console.print("the same text, and the same sound to the last bit", highlight=False)


def _stage(job: JobView, name: str) -> StageRunView:
    return next(stage for stage in job.stages if stage.name == name)
