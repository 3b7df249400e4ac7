"""The family ``glm_image``: a language model that writes image tokens, a diffusion transformer, and a VAE."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration
from omni_jobs.pipelines.flows import Flow, TensorField, ValueField

_HERE = "workers.models.glm_image"

LANGUAGE_MODEL = "OmniJobsGlmImage"
"""The name under which vLLM gets the language model's class."""

IMAGE_TOKENS = Flow(
    "image_tokens",
    {"token_ids": TensorField(frozenset({"I64"}), (("tokens",),))},
    {"height": ValueField(int, at_least=32, size="height"), "width": ValueField(int, at_least=32, size="width")},
    rules={"tokens": lambda sizes: (sizes["height"] // 32) * (sizes["width"] // 32)},
    from_tokens=True,
    content="picture",
)
"""A picture of this size in pixels as tokens of a codebook, row by row; each stands for 32 x 32 pixels."""

GLM_IMAGE = Family(
    components={
        "generate": ComponentDeclaration(
            "ar",
            produces=frozenset({"image_tokens"}),
            parameters=f"{_HERE}.parameters:GenerateParameters",
            implementation=f"{_HERE}.ar_component:GENERATE",
        ),
        "denoise": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"latents"}),
            needs=frozenset({"image_tokens"}),
            parameters=f"{_HERE}.parameters:DenoiseParameters",
            implementation=f"{_HERE}.denoise:load_denoise",
            resumable=True,
        ),
        "decode": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"pixels"}),
            needs=frozenset({"latents"}),
            parameters=f"{_HERE}.parameters:DecodeParameters",
            implementation=f"{_HERE}.vae:load_decoder",
        ),
    },
    prompts=f"{_HERE}.prompts:GlmImagePromptRenderer",
    processors={
        "text2tokens": ProcessorDeclaration(f"{_HERE}.text2tokens:Text2TokensProcessor", "ar"),
        "tokens2latents": ProcessorDeclaration(
            f"{_HERE}.tokens2latents:Tokens2LatentsProcessor", "diffusion", consumes=frozenset({"image_tokens"})
        ),
        "latents2pixels": ProcessorDeclaration(
            f"{_HERE}.latents2pixels:Latents2PixelsProcessor", "diffusion", consumes=frozenset({"latents"})
        ),
    },
    vllm_models={LANGUAGE_MODEL: f"{_HERE}.language_model:GlmImageLanguageModel"},
    checkpoint_files=("model_index.json", "vision_language_encoder/config.json", "transformer/config.json"),
    diffusers_classes=frozenset({"GlmImagePipeline"}),
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)
