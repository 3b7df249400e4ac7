"""The text demo: one question to a causal language model, and its answer while it grows."""

from pathlib import Path

from rich.console import Console

from demo.checkpoints import CACHE, SMOLLM2_SAMPLING, smollm2_checkpoint
from demo.conversation import Conversation
from demo.walk import walking
from omni_jobs.cli.tables import duration_text
from omni_jobs.errors import StageError
from omni_jobs.views import JobView

PROMPT = "Give me three tips for a good night's sleep."
MAX_TOKENS = 256


def text_demo(console: Console, out: Path | None, model: Path | None, prompt: str | None) -> None:
    """Ask the prompt in one job, with the user's checkpoint or SmolLM2. Raises OmniJobsError or TimeoutError."""
    question = PROMPT if prompt is None else prompt
    models = {"chat": model or smollm2_checkpoint(console)}
    with walking(console, out or CACHE / "demo-text", ["chat"], models) as walk:
        walk.title(f"One job over HTTP: a question to {walk.stack.url}/v1/jobs")
        request = {
            "model": "chat",
            "messages": [{"role": "user", "content": question}],
            "modalities": ["text"],
            "max_tokens": MAX_TOKENS,
            "stages": {} if model else {"llm": SMOLLM2_SAMPLING},
            "seed": 0,
        }
        conversation = Conversation(console)
        job = walk.run_job(request, on_update=lambda job: conversation.follow(question, job.stages[0]))
        conversation.show(question, str((job.result or {}).get("text") or ""))
        console.print(f"\n{_speed(job)}", highlight=False)
        walk.show_results(job)


def _speed(job: JobView) -> str:
    """Return how many tokens prompt and answer have, and the speed. Raises StageError without an answer or times."""
    result, (stage,) = job.result or {}, job.stages
    if not str(result.get("text") or "").strip() or stage.started_at is None or stage.finished_at is None:
        raise StageError("the job has no text, or no times", stage=stage.name)
    seconds = (stage.finished_at - stage.started_at).total_seconds()
    asked, answered = (result["usage"][stage.name][f"{kind}_tokens"] for kind in ("prompt", "completion"))
    ended = "the model ended it" if result.get("finish_reason") == "stop" else f"cut at {MAX_TOKENS} tokens"
    return (
        f"{asked} tokens asked, {answered} answered ({ended}) in {duration_text(seconds)}: "
        f"{answered / max(seconds, 1e-9):.1f} tokens/s"
    )
