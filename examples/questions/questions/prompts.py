"""The prompts: a list of questions and answers, for checkpoints without a chat template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omni_jobs.prompts.chat_template import PromptTemplate
from workers.models.causal_lm.prompts import CausalLmPromptRenderer

__all__ = ["QuestionRenderer", "QuestionTemplate"]

_LABELS = {"system": "Task", "user": "Question", "assistant": "Answer"}


class QuestionTemplate:
    """Implements ``PromptTemplate``."""

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        lines = [f"{_LABELS[message['role']]}: {message['content']}\n" for message in messages]
        return "".join(lines) + "Answer:"


class QuestionRenderer(CausalLmPromptRenderer):
    """Counts and renders as for every causal language model, by another template."""

    def load_template(self, model_dir: Path) -> PromptTemplate:
        return QuestionTemplate()
