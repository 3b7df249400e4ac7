"""How vLLM runs a tinted checkpoint: all of it, by our class in place of LlamaForCausalLM."""

from tinted.family import TINTED_LLAMA
from workers.runners.ar.component import ArComponent

__all__ = ["TINTED"]

TINTED = ArComponent(
    engine_args={
        "hf_overrides": {"architectures": [TINTED_LLAMA]},
        "enable_prompt_embeds": True,  # vLLM then embeds before the model runs, where embed_information edits
    }
)
