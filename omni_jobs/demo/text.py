"""The text demo: one question, and its answer while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from omni_jobs.cli.formats import duration_text
from omni_jobs.demo.checkpoints import smollm2_checkpoint
from omni_jobs.demo.conversation import Conversation
from omni_jobs.demo.walk import Scene
from omni_jobs.errors import StageError

if TYPE_CHECKING:
    from omni_jobs.views import JobView

PROMPT = "Give me three tips for a good night's sleep."
MAX_TOKENS = 256
# Its makers' recommendation, and a penalty, because so small a model repeats itself.
SMOLLM2_SAMPLING = {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}


class TextDemo:
    """The demo of a causal language model's one stage: a question, answered in text."""

    pipelines: Sequence[str] = ("chat",)
    out = "demo-text"

    def __init__(self, model: Path | None, prompt: str | None) -> None:
        self._model = model
        self._prompt = PROMPT if prompt is None else prompt

    def models(self, console: Console) -> dict[str, Path]:
        """Return the user's checkpoint directory, or SmolLM2's; raises ConfigError if that cannot be made."""
        return {"chat": self._model or smollm2_checkpoint(console)}

    def run(self, scene: Scene) -> None:
        """Run one job, and show its answer while it grows."""
        scene.title(f"One job over HTTP: a question to {scene.stack.url}/v1/jobs")
        conversation = Conversation(scene.console)
        conversation.ask(self._prompt)
        job = scene.run_job(self._request(), on_update=lambda job: conversation.follow(job.stages[0]))
        conversation.end((job.result or {}).get("text") or "")
        _show_speed(scene.console, job)
        scene.show_results(job)

    def _request(self) -> dict[str, Any]:
        return {
            "model": "chat",
            "messages": [{"role": "user", "content": self._prompt}],
            "modalities": ["text"],
            "max_tokens": MAX_TOKENS,
            "stages": {} if self._model else {"llm": SMOLLM2_SAMPLING},
            "seed": 0,
        }


def _show_speed(console: Console, job: JobView) -> None:
    """Print how many tokens prompt and answer have, and the speed. Raises StageError without an answer or times."""
    result = job.result or {}
    if not str(result.get("text") or "").strip():
        raise StageError("the job has no text")
    (stage,) = job.stages
    usage = result["usage"][stage.name]
    if stage.started_at is None or stage.finished_at is None:
        raise StageError("the job has no times", stage=stage.name)
    seconds = (stage.finished_at - stage.started_at).total_seconds()
    ended = "the model ended it" if result.get("finish_reason") == "stop" else f"cut at {MAX_TOKENS} tokens"
    console.print(
        f"{usage['prompt_tokens']} tokens asked, {usage['completion_tokens']} answered ({ended}) in "
        f"{duration_text(seconds)}: {usage['completion_tokens'] / max(seconds, 1e-9):.1f} tokens/s",
        highlight=False,
    )
