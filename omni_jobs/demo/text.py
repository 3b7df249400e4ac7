"""The text demo: one question, and its answer while it grows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from omni_jobs.cli.formats import duration_text
from omni_jobs.cli.live import show_text
from omni_jobs.client import Client
from omni_jobs.demo.checkpoints import smollm2_checkpoint
from omni_jobs.errors import StageError

if TYPE_CHECKING:
    from omni_jobs.views import JobView

PROMPT = "Give me three tips for a good night's sleep."
MAX_TOKENS = 256
JOB_LIMIT_S = 1800.0
# Its makers' recommendation, and a penalty, because so small a model repeats itself.
SMOLLM2_SAMPLING = {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}


class TextDemo:
    """The demo of a causal language model's one stage: a question, answered in text."""

    pipeline = "chat"
    subject = "a question"
    out = "demo-text"

    def __init__(self, model: Path | None, prompt: str | None) -> None:
        self._model = model
        self._prompt = PROMPT if prompt is None else prompt

    def checkpoint(self, console: Console) -> Path:
        """Return the user's checkpoint directory, or SmolLM2's; raises ConfigError if that cannot be made."""
        return self._model or smollm2_checkpoint(console)

    def request(self, scratch: Path) -> dict[str, Any]:
        """Return a request for an answer to the prompt, in text; ``scratch`` is not used."""
        return {
            "model": self.pipeline,
            "messages": [{"role": "user", "content": self._prompt}],
            "modalities": ["text"],
            "max_tokens": MAX_TOKENS,
            "stages": {} if self._model else {"llm": SMOLLM2_SAMPLING},
            "seed": 0,
        }

    def follow(self, client: Client, job_id: str) -> JobView:
        """Wait for the job, print its growing text, and return the ended job. Raises TimeoutError after 30 min."""
        return show_text(client, job_id, self._prompt, JOB_LIMIT_S)

    def show(self, console: Console, job: JobView, out: Path) -> None:
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
