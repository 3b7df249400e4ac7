"""The family ``qwen_image``: a text encoder on vLLM, a diffusion transformer, and a VAE."""

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration

_HERE = "workers.models.qwen_image"

QWEN_IMAGE = Family(
    components={
        "encode": ComponentDeclaration(
            "pooling", produces=frozenset({"embeds"}), implementation=f"{_HERE}.encoder:ENCODER"
        ),
        "denoise": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"latents"}),
            needs=frozenset({"embeds"}),
            dtypes=frozenset({"auto", "float32", "bfloat16"}),
            parameters=f"{_HERE}.parameters:DrawParameters",
            implementation=f"{_HERE}.denoiser:load_denoiser",
            resumable=True,
        ),
        "decode": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"pixels"}),
            needs=frozenset({"latents"}),
            dtypes=frozenset({"auto", "float32", "bfloat16"}),
            parameters="omni_jobs.pipelines.parameters:StageParameters",
            implementation=f"{_HERE}.vae:load_decoder",
        ),
    },
    prompts=f"{_HERE}.prompts:QwenImagePromptRenderer",
    processors={
        "describe": ProcessorDeclaration(f"{_HERE}.processors:DescribeProcessor", "pooling"),
        "embeds2latents": ProcessorDeclaration(
            f"{_HERE}.processors:Embeds2LatentsProcessor",
            "diffusion",
            consumes=frozenset({"embeds"}),
            parameters=f"{_HERE}.parameters:DrawParameters",
        ),
        "latents2pixels": ProcessorDeclaration(
            "workers.models.pictures.latents2pixels:Latents2PixelsProcessor",
            "diffusion",
            consumes=frozenset({"latents"}),
        ),
    },
    checkpoint_files=("model_index.json",),
    diffusers_classes=frozenset({"QwenImagePipeline"}),
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)
