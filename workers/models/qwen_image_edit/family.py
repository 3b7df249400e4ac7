"""The family ``qwen_image_edit``: Qwen-Image's parts, a text encoder that sees pictures, and a VAE that encodes."""

from typing import Final

from omni_jobs.pipelines.declarations import ComponentDeclaration, Family, ProcessorDeclaration

_HERE = "workers.models.qwen_image_edit"
_QWEN_IMAGE = "workers.models.qwen_image"
_DTYPES = frozenset({"auto", "float32", "bfloat16"})

TEXT_ENCODER: Final = "QwenImageEditTextEncoder"
"""The name under which vLLM gets the text encoder's model class."""

QWEN_IMAGE_EDIT = Family(
    components={
        "encode": ComponentDeclaration(
            "pooling", produces=frozenset({"embeds"}), implementation=f"{_HERE}.encoder:ENCODER"
        ),
        "sources": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"picture_latents"}),
            dtypes=_DTYPES,
            parameters=f"{_HERE}.parameters:SourcesParameters",
            implementation=f"{_QWEN_IMAGE}.vae:load_encoder",
        ),
        "denoise": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"latents"}),
            needs=frozenset({"embeds", "picture_latents"}),
            dtypes=_DTYPES,
            parameters=f"{_HERE}.parameters:EditParameters",
            implementation=f"{_QWEN_IMAGE}.denoiser:load_editor",
            resumable=True,
        ),
        "decode": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"pixels"}),
            needs=frozenset({"latents"}),
            dtypes=_DTYPES,
            parameters="omni_jobs.pipelines.parameters:StageParameters",
            implementation=f"{_QWEN_IMAGE}.vae:load_decoder",
        ),
    },
    prompts=f"{_HERE}.prompts:QwenImageEditPromptRenderer",
    processors={
        "instruct": ProcessorDeclaration(f"{_HERE}.processors:InstructProcessor", "pooling"),
        "scale": ProcessorDeclaration(f"{_HERE}.processors:ScaleProcessor", "diffusion"),
        "edit": ProcessorDeclaration(
            f"{_HERE}.processors:EditProcessor", "diffusion", consumes=frozenset({"embeds", "picture_latents"})
        ),
        "latents2pixels": ProcessorDeclaration(
            f"{_QWEN_IMAGE}.processors:Latents2PixelsProcessor", "diffusion", consumes=frozenset({"latents"})
        ),
    },
    vllm_models={TEXT_ENCODER: f"{_HERE}.text_encoder:{TEXT_ENCODER}"},
    checkpoint_files=("model_index.json",),
    diffusers_classes=frozenset({"QwenImageEditPlusPipeline", "QwenImageEditPipeline"}),
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)
