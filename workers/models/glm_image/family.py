"""The family ``glm_image``: a language model that writes image tokens, a diffusion transformer, and a VAE.

Pictures that a job edits are encoded by the language model's vision tower and by the VAE.
"""

from omni_jobs.pipelines.declarations import CardMemory, ComponentDeclaration, Family, ProcessorDeclaration
from omni_jobs.pipelines.flows import FLOATS, Dialect, Flow, TensorField, ValueField

_HERE = "workers.models.glm_image"
_NO_PARAMETERS = "omni_jobs.pipelines.parameters:StageParameters"

LANGUAGE_MODEL = "OmniJobsGlmImage"
"""The name under which vLLM gets the language model's class."""

SOURCE_PICTURES = Flow(
    "source_pictures",
    {
        "grids": TensorField(frozenset({"I64"}), (("pictures", 2),)),
        "token_ids": TensorField(frozenset({"I64"}), (("tokens",),)),
        "latents": TensorField(FLOATS, (("channels", "positions"),), finite=True),
    },
    rules={"positions": lambda sizes: 16 * sizes["tokens"]},
    content="pictures",
)
"""The pictures that a job edits, one after the other, as image tokens and as latents, which are 4 x 4 to a token.

``grids`` has each picture's rows and columns of tokens. A job that edits nothing has no picture.
"""

IMAGE_TOKENS = Flow(
    "image_tokens",
    {"token_ids": TensorField(frozenset({"I64"}), (("tokens",),))},
    {"height": ValueField(int, at_least=32, size="height"), "width": ValueField(int, at_least=32, size="width")},
    rules={"tokens": lambda sizes: (sizes["height"] // 32) * (sizes["width"] // 32)},
    from_tokens=True,
    content="picture",
)
"""A picture of this size in pixels as tokens of a codebook, row by row; each stands for 32 x 32 pixels."""

_PICTURE_TOKENIZER = ("vision_language_encoder/model.visual.", "vision_language_encoder/model.vqmodel.")
_LATENTS = {"latents": Dialect("glm_image", {"channels": 16})}

GLM_IMAGE = Family(
    components={
        "encode": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"source_pictures"}),
            parameters=_NO_PARAMETERS,
            implementation=f"{_HERE}.encode:load_encode",
            memory=CardMemory((*_PICTURE_TOKENIZER, "vae/"), auto_bytes=4, work_bytes=4 * 10**9),
        ),
        "generate": ComponentDeclaration(
            "ar",
            produces=frozenset({"image_tokens"}),
            parameters=f"{_HERE}.parameters:GenerateParameters",
            implementation=f"{_HERE}.ar_component:GENERATE",
            memory=CardMemory(
                ("vision_language_encoder/",),
                _PICTURE_TOKENIZER,
                context=("vision_language_encoder/config.json", "text_config"),
                work_bytes=4 * 10**9,
            ),
        ),
        "denoise": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"latents"}),
            needs=frozenset({"image_tokens"}),
            parameters=f"{_HERE}.parameters:DenoiseParameters",
            implementation=f"{_HERE}.denoise:load_denoise",
            resumable=True,
            dialects=_LATENTS,
            memory=CardMemory(("transformer/", "text_encoder/"), work_bytes=3 * 10**9, compact=("transformer/",)),
            takes=frozenset({"devices", "lora_modules", "offload_blocks", "weights"}),
        ),
        "decode": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"pixels"}),
            needs=frozenset({"latents"}),
            parameters=_NO_PARAMETERS,
            implementation=f"{_HERE}.vae:load_decoder",
            dialects=_LATENTS,
            memory=CardMemory(("vae/",), auto_bytes=4, work_bytes=4 * 10**9),
        ),
    },
    prompts=f"{_HERE}.prompts:GlmImagePromptRenderer",
    processors={
        "pictures2sources": ProcessorDeclaration(
            f"{_HERE}.processors:Pictures2SourcesProcessor",
            "diffusion",
            parameters=_NO_PARAMETERS,
        ),
        # A pipeline without the input of source pictures draws, and edits nothing.
        "text2tokens": ProcessorDeclaration(
            f"{_HERE}.processors:Text2TokensProcessor",
            "ar",
            may_consume=frozenset({"source_pictures"}),
            parameters=f"{_HERE}.parameters:GenerateParameters",
        ),
        "tokens2latents": ProcessorDeclaration(
            f"{_HERE}.processors:Tokens2LatentsProcessor",
            "diffusion",
            consumes=frozenset({"image_tokens"}),
            may_consume=frozenset({"source_pictures"}),
            parameters=f"{_HERE}.parameters:DenoiseParameters",
        ),
        "latents2pixels": ProcessorDeclaration(
            "workers.models.pictures.latents2pixels:Latents2PixelsProcessor",
            "diffusion",
            consumes=frozenset({"latents"}),
        ),
    },
    vllm_models={LANGUAGE_MODEL: f"{_HERE}.language_model:GlmImageLanguageModel"},
    checkpoint_files=("model_index.json", "vision_language_encoder/config.json", "transformer/config.json"),
    diffusers_classes=frozenset({"GlmImagePipeline"}),
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)
