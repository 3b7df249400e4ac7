"""The family ``causal_lm``: any causal language model of the Hugging Face layout that vLLM knows."""

from omni_jobs.pipelines.declarations import CardMemory, ComponentDeclaration, Family

_MEMORY = CardMemory(context=("config.json",))

CAUSAL_LM = Family(
    components={
        None: ComponentDeclaration("ar", produces=frozenset({"text", "token_ids", "hidden_states"}), memory=_MEMORY),
        "encoder": ComponentDeclaration("pooling", produces=frozenset({"embeds"}), memory=_MEMORY),
    },
    prompts="workers.models.causal_lm.prompts:CausalLmPromptRenderer",
)
