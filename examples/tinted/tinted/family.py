"""The family, and the flow between its stages. Light: the API reads them, without torch and vLLM."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration
from omni_jobs.pipelines.flows import FLOATS, Flow, TensorField, ValueField

__all__ = ["TINTED", "TINTED_LLAMA", "TINTED_STATES"]

TINTED_LLAMA = "TintedLlama"

TINTED = Family(
    components={
        None: ComponentDeclaration(
            "ar", produces=frozenset({"text", "tinted_states"}), implementation="tinted.parts:TINTED"
        )
    },
    prompts="workers.models.causal_lm.prompts:CausalLmPromptRenderer",
    processors={
        "tint": ProcessorDeclaration("tinted.processors:TintProcessor", "ar"),
        "tint_summary": ProcessorDeclaration(
            "tinted.processors:SummaryProcessor", "echo", consumes=frozenset({"tinted_states"})
        ),
    },
    vllm_models={TINTED_LLAMA: "tinted.model:TintedLlamaForCausalLM"},
    tiny_checkpoint="tinted.tiny_checkpoint",
)

TINTED_STATES = Flow(
    "tinted_states",
    tensors={
        "hidden_states": TensorField(FLOATS, (("rows", "hidden_size"),)),
        "token_ids": TensorField(frozenset({"I64"}), (("tokens",),)),
        "mean": TensorField(FLOATS, (("hidden_size",),)),
        "norms": TensorField(FLOATS, (("rows",),)),
    },
    values={"prompt_tokens": ValueField(int, at_least=1, size="prompt_tokens")},
    rules={"rows": lambda sizes: sizes["prompt_tokens"] + sizes["tokens"] - 1},
    content="text",
)
