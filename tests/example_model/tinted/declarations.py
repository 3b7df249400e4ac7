"""What the stage config may name. Light: the API reads it, without torch and vLLM."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, ProcessorDeclaration

__all__ = ["TINT", "TINTED", "TINT_SUMMARY"]

TINTED = {None: ComponentDeclaration("ar", produces=frozenset({"text", "hidden_states"}))}

TINT = ProcessorDeclaration("tinted.processors:TintProcessor", kind="ar")

TINT_SUMMARY = ProcessorDeclaration(
    "tinted.processors:SummaryProcessor", kind="echo", consumes=frozenset({"hidden_states"})
)
