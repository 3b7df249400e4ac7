"""The parts of a tinted checkpoint: all of it, run by our class in place of LlamaForCausalLM."""

from workers.models.components import Architecture, Component, ModelClass

__all__ = ["TINTED"]

TINTED_LLAMA = ModelClass("TintedLlama", "tinted.model:TintedLlamaForCausalLM")

TINTED = Architecture(
    {
        None: Component(
            model_class=TINTED_LLAMA,
            engine_args={
                "hf_overrides": {"architectures": [TINTED_LLAMA.architecture]},
                "enable_prompt_embeds": True,  # vLLM then embeds before the model runs, where embed_information edits
            },
        )
    }
)
