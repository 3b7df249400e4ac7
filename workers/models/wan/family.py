"""The families ``wan``, which films a description, and ``wan_i2v``, whose videos begin with a picture."""

from typing import Final

from omni_jobs.pipelines.declarations import CardMemory, ComponentDeclaration, Family, ProcessorDeclaration
from omni_jobs.pipelines.flows import FLOATS, Dialect, Flow, TensorField

_HERE = "workers.models.wan"
_DTYPES = frozenset({"auto", "float32", "bfloat16"})

CHANNELS: Final = 16
"""The numbers of a latent."""

TEXT_STATES = Flow(
    "text_states",
    {
        "prompt_embeds": TensorField(FLOATS, (("tokens", "hidden_size"),), finite=True),
        "negative_prompt_embeds": TensorField(
            FLOATS, (("negative_tokens", "hidden_size"),), optional=True, finite=True
        ),
    },
    content="embeddings",
)
"""A description and a negative prompt as a text encoder's states, a row for each token."""

_LATENTS = {"latents": Dialect("wan", {"channels": CHANNELS})}

BEGIN_LATENTS = Flow(
    "begin_latents",
    {"begin_latents": TensorField(FLOATS, (("channels", "frames", "height", "width"),), finite=True)},
    content="latents",
)
"""The latents of a video of one picture and nothing behind it, which a video is to begin as."""

_BEGIN = {"begin_latents": Dialect("wan", {"channels": CHANNELS})}

_ENCODE = ComponentDeclaration(
    "diffusion",
    produces=frozenset({"text_states"}),
    dtypes=_DTYPES,
    parameters=f"{_HERE}.parameters:TextParameters",
    implementation=f"{_HERE}.text_encoder:load_text_encoder",
    memory=CardMemory(("text_encoder/",), work_bytes=2 * 10**9),
)
_DENOISE_MEMORY = CardMemory(
    ("transformer/", "transformer_2/"),
    work_bytes=12 * 10**9,
    compact=("transformer/blocks.", "transformer_2/blocks."),
)
_DENOISE_TAKES = frozenset({"devices", "lora_modules", "offload_blocks", "weights"})
_DECODE = ComponentDeclaration(
    "diffusion",
    produces=frozenset({"pixels"}),
    needs=frozenset({"latents"}),
    dtypes=_DTYPES,
    parameters=f"{_HERE}.parameters:PlaybackParameters",
    implementation=f"{_HERE}.decoder:load_decoder",
    dialects=_LATENTS,
    memory=CardMemory(("vae/",), auto_bytes=4, work_bytes=8 * 10**9),
)
_NARRATE = ProcessorDeclaration(
    f"{_HERE}.processors:NarrateProcessor", "diffusion", parameters=f"{_HERE}.parameters:TextParameters"
)
_LATENTS2FRAMES = ProcessorDeclaration(
    f"{_HERE}.processors:Latents2FramesProcessor",
    "diffusion",
    consumes=frozenset({"latents"}),
    parameters=f"{_HERE}.parameters:PlaybackParameters",
)

WAN = Family(
    components={
        "encode": _ENCODE,
        "denoise": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"latents"}),
            needs=frozenset({"text_states"}),
            dtypes=_DTYPES,
            parameters=f"{_HERE}.parameters:FilmParameters",
            implementation=f"{_HERE}.denoiser:load_denoiser",
            resumable=True,
            dialects=_LATENTS,
            memory=_DENOISE_MEMORY,
            takes=_DENOISE_TAKES,
        ),
        "decode": _DECODE,
    },
    prompts=f"{_HERE}.prompts:WanPromptRenderer",
    processors={
        "narrate": _NARRATE,
        "film": ProcessorDeclaration(
            f"{_HERE}.processors:FilmProcessor",
            "diffusion",
            consumes=frozenset({"text_states"}),
            parameters=f"{_HERE}.parameters:FilmParameters",
        ),
        "latents2frames": _LATENTS2FRAMES,
    },
    checkpoint_files=("model_index.json",),
    diffusers_classes=frozenset({"WanPipeline"}),
    tiny_checkpoint=f"{_HERE}.tiny_checkpoint",
)

WAN_I2V = Family(
    components={
        "encode": _ENCODE,
        "begin": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"begin_latents"}),
            dtypes=_DTYPES,
            parameters=f"{_HERE}.parameters:BeginParameters",
            implementation=f"{_HERE}.begin:load_begin_encoder",
            dialects=_BEGIN,
            memory=CardMemory(("vae/",), auto_bytes=4, work_bytes=8 * 10**9),
        ),
        "denoise": ComponentDeclaration(
            "diffusion",
            produces=frozenset({"latents"}),
            needs=frozenset({"text_states", "begin_latents"}),
            dtypes=_DTYPES,
            parameters=f"{_HERE}.parameters:AnimateParameters",
            implementation=f"{_HERE}.denoiser:load_animator",
            resumable=True,
            dialects={**_LATENTS, **_BEGIN},
            memory=_DENOISE_MEMORY,
            takes=_DENOISE_TAKES,
        ),
        "decode": _DECODE,
    },
    prompts=f"{_HERE}.prompts:WanPicturePromptRenderer",
    processors={
        "narrate": _NARRATE,
        "begin": ProcessorDeclaration(
            f"{_HERE}.processors:BeginProcessor", "diffusion", parameters=f"{_HERE}.parameters:BeginParameters"
        ),
        "animate": ProcessorDeclaration(
            f"{_HERE}.processors:AnimateProcessor",
            "diffusion",
            consumes=frozenset({"text_states", "begin_latents"}),
            parameters=f"{_HERE}.parameters:AnimateParameters",
        ),
        "latents2frames": _LATENTS2FRAMES,
    },
    checkpoint_files=("model_index.json",),
    diffusers_classes=frozenset({"WanImageToVideoPipeline"}),
    tiny_checkpoint=f"{_HERE}.tiny_i2v_checkpoint",
)
