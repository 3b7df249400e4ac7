"""The family ``qwen2_5_vl``: a language model that sees pictures and videos, on vLLM's own class."""

from omni_jobs.pipelines.declarations import CardMemory, ComponentDeclaration, Family

_HERE = "workers.models.qwen2_5_vl"

QWEN2_5_VL = Family(
    components={
        None: ComponentDeclaration(
            "ar",
            produces=frozenset({"text", "token_ids", "hidden_states"}),
            # Its vision encoder is that of Qwen2.5-Omni's thinker.
            memory=CardMemory(context=("config.json",), work_bytes=5_900_000_000),
        ),
    },
    prompts=f"{_HERE}.prompts:QwenVlPromptRenderer",
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)
