"""The family. Light: the API reads it, without torch and vLLM."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family

__all__ = ["QUESTIONS"]

QUESTIONS = Family(
    components={None: ComponentDeclaration("ar", produces=frozenset({"text", "hidden_states"}))},
    prompts="questions.prompts:QuestionRenderer",
)
