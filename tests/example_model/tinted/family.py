"""What the stage config may name. Light: the API reads it, without torch and vLLM."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration

__all__ = ["TINTED", "TINTED_LLAMA"]

TINTED_LLAMA = "TintedLlama"

TINTED = Family(
    components={
        None: ComponentDeclaration(
            "ar", produces=frozenset({"text", "hidden_states"}), implementation="tinted.parts:TINTED"
        )
    },
    prompts="workers.models.causal_lm.prompts:CausalLmPromptRenderer",
    processors={
        "tint": ProcessorDeclaration("tinted.processors:TintProcessor", "ar"),
        "tint_summary": ProcessorDeclaration(
            "tinted.processors:SummaryProcessor", "echo", consumes=frozenset({"hidden_states"})
        ),
    },
    vllm_models={TINTED_LLAMA: "tinted.model:TintedLlamaForCausalLM"},
)
