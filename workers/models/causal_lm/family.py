"""The family ``causal_lm``: any causal language model of the Hugging Face layout that vLLM knows."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family

CAUSAL_LM = Family(
    components={
        None: ComponentDeclaration("ar", produces=frozenset({"text", "token_ids", "hidden_states"})),
        "encoder": ComponentDeclaration("pooling", produces=frozenset({"embeds"})),
    },
    prompts="workers.models.causal_lm.prompts:CausalLmPromptRenderer",
)
