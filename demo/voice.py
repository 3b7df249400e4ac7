"""The voice demo: a question spoken, an answer spoken, then the same again while a worker is killed."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from demo.checkpoints import CACHE, SMOLLM2_SAMPLING, smollm2_checkpoint
from demo.conversation import Conversation
from demo.walk import Walk, walking
from omni_jobs.client import user_message
from omni_jobs.errors import StageError
from omni_jobs.states import StageRunState
from omni_jobs.views import JobView, StageRunView

QUESTION = "What should I do when I cannot sleep at night?"
MANNER = "You are a helpful assistant. Answer in one or two short sentences."
VICTIM = "listen"
"""The stage whose worker is killed: it starts anew within seconds."""

KILLS = 5  # a recording is heard in half a second, so a kill may come too late


def voice_demo(console: Console, out: Path | None, model: Path | None, prompt: str | None, audio: Path | None) -> None:
    """Ask what is said in ``audio``, or else speak ``prompt`` and ask that; ask again, kill a worker, and compare.

    ``model`` thinks, or else SmolLM2. Raises OmniJobsError or TimeoutError.
    """
    models = {"voice.think": model or smollm2_checkpoint(console)}
    with walking(console, out or CACHE / "demo", ["speech", "voice"], models) as walk:
        recording = audio or _spoken(walk, QUESTION if prompt is None else prompt)
        request = {
            "model": "voice",
            "messages": [{"role": "system", "content": MANNER}, user_message(audio=[recording])],
            "modalities": ["text", "audio"],
            "stages": {} if model else {"think": SMOLLM2_SAMPLING},
            "seed": 0,
        }
        walk.title(f"One job over HTTP: {recording.name} to {walk.stack.url}/v1/jobs")
        job = _converse(walk, request)
        walk.show_results(job)
        walk.title(f"The same again, and the worker of the stage {VICTIM} is killed while it listens")
        again = _run_with_a_kill(walk, request)
        if job.made.get("text") != again.made.get("text"):
            raise StageError("the second answer is another text")
        if [each.digest for each in job.artifacts] != [each.digest for each in again.artifacts]:
            raise StageError("the second answer sounds otherwise")
        console.print("the same text, and the same sound to the last bit", highlight=False)


def _spoken(walk: Walk, question: str) -> Path:
    """Make a recording of the question with a job of its own, and return its file. Raises StageError."""
    walk.title(f"The question, spoken by the pipeline speech: {question}")
    messages = [{"role": "user", "content": question}]
    job = walk.run_job({"model": "speech", "messages": messages, "modalities": ["audio"], "seed": 0})
    (artifact,) = job.artifacts
    file = walk.out / f"question{Path(artifact.name).suffix}"
    file.parent.mkdir(parents=True, exist_ok=True)
    walk.client.save_artifact(job, artifact.name, file)
    walk.console.print(f"{file}", highlight=False, soft_wrap=True)
    return file


def _converse(walk: Walk, request: Mapping[str, Any]) -> JobView:
    """Run the request, print what was heard, and the answer while it grows. Return the completed job.

    Raises StageError if nothing was heard, or the answer is empty.
    """
    conversation = Conversation(walk.console)

    def update(job: JobView) -> None:
        if heard := _heard(job):
            conversation.follow(heard, _stage(job, "think"))

    job = walk.run_job(request, on_update=update)
    heard, said = _heard(job), job.made.get("text")
    if not heard or not said:
        raise StageError("nothing was heard" if not heard else "the answer is empty")
    conversation.show(heard, said)
    walk.console.print()
    return job


def _run_with_a_kill(walk: Walk, request: Mapping[str, Any]) -> JobView:
    """Run the request while a worker is killed in the middle of it, and return the completed job.

    A kill that comes too late is tried again with a new job. Raises StageError if all come too late.
    """
    for _ in range(KILLS):
        killed = False

        def kill(job: JobView) -> None:
            nonlocal killed
            if not killed and _stage(job, VICTIM).status == StageRunState.RUNNING:
                killed = True
                os.kill(_worker_pid(walk), signal.SIGKILL)

        job = walk.run_job(request, on_update=kill)
        stage = _stage(job, VICTIM)
        if stage.attempt > 1:
            errors = ", ".join(error.code for error in stage.errors)
            walk.console.print(f"{VICTIM}: attempt {stage.attempt} succeeded, after {errors}", highlight=False)
            return job
    raise StageError(f"no worker died while it ran {VICTIM}")


def _worker_pid(walk: Walk) -> int:
    for child in walk.stack.children():
        if child.name == f"worker voice.{VICTIM}" and child.pid is not None:
            return child.pid
    raise StageError("its worker is not running", stage=VICTIM)


def _heard(job: JobView) -> str:
    return str((job.made.get("texts") or {}).get("listen") or "").strip()


def _stage(job: JobView, name: str) -> StageRunView:
    return next(stage for stage in job.stages if stage.name == name)
