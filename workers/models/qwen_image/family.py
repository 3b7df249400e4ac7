"""The families ``qwen_image``, which draws, and ``qwen_image_edit``, of the same parts and a VAE that encodes, too."""

from typing import Final

from omni_jobs.pipelines.declarations import CardMemory, ComponentDeclaration, Family, ProcessorDeclaration
from omni_jobs.pipelines.flows import FLOATS, Dialect, Flow, TensorField, ValueField

_HERE = "workers.models.qwen_image"
_DTYPES = frozenset({"auto", "float32", "bfloat16"})

TEXT_ENCODER: Final = "QwenImageEditTextEncoder"
"""The name under which vLLM gets the model class of the text encoder that sees pictures."""

CHANNELS: Final = 16
"""The numbers of a latent."""

TOKEN: Final = CHANNELS * 4
"""The width of a packed token: a patch of 2 x 2 latents."""

SOURCE_TOKENS = Flow(
    "source_tokens",
    {"source_tokens": TensorField(FLOATS, (("tokens", TOKEN),), finite=True)},
    {"source_sizes": ValueField(list), "default_size": ValueField(list)},
    content="pictures",
)
"""The pictures that a job edits, one after the other, as the transformer takes them.

``source_sizes`` has each picture's height and width in pixels, once scaled; ``default_size`` has those of an edit that
names no size.
"""

_LATENTS = {"latents": Dialect("qwen_image", {"channels": CHANNELS})}  # of both families, whose VAE is one

_HEAD = ("text_encoder/lm_head.",)
_VISION = ("text_encoder/visual.", "text_encoder/model.visual.")
_TEXT_CONFIG = ("text_encoder/config.json",)
_DENOISE_TAKES = frozenset({"devices", "lora_modules", "offload_blocks", "weights"})
_DENOISE_MEMORY = CardMemory(("transformer/",), work_bytes=8 * 10**9, compact=("transformer/",))

_DECODE = ComponentDeclaration(
    "diffusion",
    produces=frozenset({"pixels"}),
    needs=frozenset({"latents"}),
    dtypes=_DTYPES,
    parameters="omni_jobs.pipelines.parameters:StageParameters",
    implementation=f"{_HERE}.vae:load_decoder",
    dialects=_LATENTS,
    memory=CardMemory(("vae/",), auto_bytes=4, work_bytes=6 * 10**9),
)
_LATENTS2PIXELS = ProcessorDeclaration(
    "workers.models.pictures.latents2pixels:Latents2PixelsProcessor", "diffusion", consumes=frozenset({"latents"})
)

QWEN_IMAGE = Family(
    components={
        "encode": ComponentDeclaration(
            "pooling",
            produces=frozenset({"embeds"}),
            implementation=f"{_HERE}.encoder:ENCODER",
            memory=CardMemory(("text_encoder/",), (*_HEAD, *_VISION), context=_TEXT_CONFIG, work_bytes=4 * 10**9),
        ),
        "denoise": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"latents"}),
            needs=frozenset({"embeds"}),
            dtypes=_DTYPES,
            parameters=f"{_HERE}.parameters:DrawParameters",
            implementation=f"{_HERE}.denoiser:load_denoiser",
            resumable=True,
            dialects=_LATENTS,
            memory=_DENOISE_MEMORY,
            takes=_DENOISE_TAKES,
        ),
        "decode": _DECODE,
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
        "latents2pixels": _LATENTS2PIXELS,
    },
    checkpoint_files=("model_index.json",),
    diffusers_classes=frozenset({"QwenImagePipeline"}),
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)

QWEN_IMAGE_EDIT = Family(
    components={
        "encode": ComponentDeclaration(
            "pooling",
            produces=frozenset({"embeds"}),
            implementation=f"{_HERE}.encoder:EDIT_ENCODER",
            memory=CardMemory(("text_encoder/",), _HEAD, context=_TEXT_CONFIG, work_bytes=4 * 10**9),
        ),
        "sources": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"source_tokens"}),
            dtypes=_DTYPES,
            parameters=f"{_HERE}.parameters:SourcesParameters",
            implementation=f"{_HERE}.source_encoder:load_source_encoder",
            memory=CardMemory(("vae/",), auto_bytes=4, work_bytes=3 * 10**9),
        ),
        "denoise": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"latents"}),
            needs=frozenset({"embeds", "source_tokens"}),
            dtypes=_DTYPES,
            parameters=f"{_HERE}.parameters:EditParameters",
            implementation=f"{_HERE}.denoiser:load_editor",
            resumable=True,
            dialects=_LATENTS,
            memory=_DENOISE_MEMORY,
            takes=_DENOISE_TAKES,
        ),
        "decode": _DECODE,
    },
    prompts=f"{_HERE}.prompts:QwenImageEditPromptRenderer",
    processors={
        "instruct": ProcessorDeclaration(f"{_HERE}.processors:DescribeProcessor", "pooling"),
        "scale": ProcessorDeclaration(
            f"{_HERE}.processors:ScaleProcessor", "diffusion", parameters=f"{_HERE}.parameters:SourcesParameters"
        ),
        "edit": ProcessorDeclaration(
            f"{_HERE}.processors:EditProcessor",
            "diffusion",
            consumes=frozenset({"embeds", "source_tokens"}),
            parameters=f"{_HERE}.parameters:EditParameters",
        ),
        "latents2pixels": _LATENTS2PIXELS,
    },
    vllm_models={TEXT_ENCODER: f"{_HERE}.text_encoder:{TEXT_ENCODER}"},
    checkpoint_files=("model_index.json",),
    diffusers_classes=frozenset({"QwenImageEditPlusPipeline", "QwenImageEditPipeline"}),
    tiny_checkpoint=f"{_HERE}.tiny_edit_checkpoint",
)
