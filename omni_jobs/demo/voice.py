"""The voice demo: a question spoken, an answer spoken, then the same again while a worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from omni_jobs.cli.formats import printable
from omni_jobs.cli.live import show_progress
from omni_jobs.client import user_message
from omni_jobs.demo.checkpoints import smollm2_checkpoint
from omni_jobs.demo.sound import show_sound
from omni_jobs.demo.text import SMOLLM2_SAMPLING
from omni_jobs.demo.walk import Scene, completed
from omni_jobs.errors import StageError
from omni_jobs.states import StageRunState

if TYPE_CHECKING:
    from omni_jobs.views import JobView, StageRunView

QUESTION = "What should I do when I cannot sleep at night?"
MANNER = "You are a helpful assistant. Answer in one or two short sentences."
VICTIM = "listen"
"""The stage whose worker is killed: it starts anew within seconds."""

JOB_LIMIT_S = 600.0
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
        watch = _Conversation(scene.console)
        job = scene.run_job(
            request, lambda job_id: scene.client.wait(job_id, timeout=JOB_LIMIT_S, on_update=watch.update)
        )
        watch.end(job)
        scene.title("What came back")
        scene.save(job)
        show_sound(scene.console, job, scene.out)
        scene.show_times(job)
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
        job = scene.run_job(request, lambda job_id: show_progress(scene.client, job_id, timeout=JOB_LIMIT_S))
        (artifact,) = job.artifacts
        file = scene.out / f"question{Path(artifact.name).suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        scene.client.save_artifact(job, artifact.name, file)
        scene.console.print(f"{file}", highlight=False, soft_wrap=True)
        return file


class _Conversation:
    """Prints what was heard, and the answer while it grows."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._heard = False
        self._shown = ""

    def update(self, job: JobView) -> None:
        """Print what is new in a job."""
        heard = ((job.result_so_far or {}).get("texts") or {}).get("listen")
        if heard:
            self._hear(heard)
        think = _stage(job, "think")
        if heard and think.progress is not None and think.progress.text:
            self._print_more(think.progress.text)

    def end(self, job: JobView) -> None:
        """Print what is left of a completed job. Raises StageError if nothing was heard, or the answer is empty."""
        result = job.result or {}
        heard, said = (result.get("texts") or {}).get("listen"), result.get("text")
        if not heard or not said:
            raise StageError("nothing was heard" if not heard else "the answer is empty")
        self._hear(heard)
        self._print_more(said)
        self._console.print()

    def _hear(self, text: str) -> None:
        if not self._heard:
            self._heard = True
            self._console.print(Text(f"\n> {printable(text.strip())}\n", style="dim"), soft_wrap=True)

    def _print_more(self, text: str) -> None:
        if not text.startswith(self._shown):  # a second attempt started from the beginning
            self._console.print("\n")
            self._shown = ""
        self._console.print(Text(printable(text[len(self._shown) :])), end="", soft_wrap=True)
        self._shown = text


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

        job = scene.client.submit(request)
        scene.console.print(f"submitted {job.id}", highlight=False)
        job = completed(scene.client.wait(job.id, timeout=JOB_LIMIT_S, on_update=kill))
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
