"""``IMAGE_GENERATIONS`` and ``IMAGE_EDITS``: what becomes of each parameter of a picture that is asked for."""

from typing import Final

from omni_jobs.openai.parameters import Parameter, ParameterTable, ignored, refused, taken

_OF_BOTH: tuple[Parameter, ...] = (
    taken("n", "1 to 10 pictures, a job each"),
    taken("size", "`WIDTHxHEIGHT`, or `auto`: the pipeline's choice"),
    taken("output_format", "`png`, `jpeg` or `webp`; default `png`"),
    taken("response_format", "`b64_json`, or `url` of the artifact; a stream has `b64_json`"),
    taken("stream", "the pictures as they are made, see above"),
    taken("partial_images", "0 to 3 previews of each picture, with `stream`; default 0"),
    taken("quality", "a parameter of the stage, where it has it, as remote ones have; else it is ignored"),
    taken("background", "as `quality`; `transparent` is refused where no stage has it"),
    taken("output_compression", "as `quality`: our own files have a quality of 90"),
    taken("seed", "vLLM-Omni's: of the first picture; each further one has the next"),
    taken("negative_prompt", "vLLM-Omni's: a parameter of the stage; refused where no stage has it"),
    taken("num_inference_steps", "as `negative_prompt`; most stages call it `steps`"),
    taken("guidance_scale", "as `negative_prompt`"),
    taken("true_cfg_scale", "as `negative_prompt`"),
    taken("stages", "not OpenAI's: parameters by stage, as in `POST /v1/jobs`"),
)
_IGNORED: tuple[Parameter, ...] = (
    ignored("complexity", "no pipeline has it as a parameter"),
    ignored("safety_identifier", "the key says who asks"),
    ignored("user", "the key says who asks"),
)
_REFUSED: tuple[Parameter, ...] = (
    refused("frame_count", "no pipeline makes GIF"),
    refused("frame_duration_ms", "no pipeline makes GIF"),
    refused("svg", "no pipeline makes SVG"),
)

IMAGE_GENERATIONS: Final = ParameterTable(
    "POST /v1/images/generations",
    (
        taken("model", "the pipeline, which takes text and makes a picture"),
        taken("prompt", "what the picture shows"),
        *_OF_BOTH,
        taken("style", "as `quality`"),
        *_IGNORED,
        ignored("moderation", "nothing here moderates"),
        *_REFUSED,
    ),
)

IMAGE_EDITS: Final = ParameterTable(
    "POST /v1/images/edits",
    (
        taken("model", "the pipeline, which takes pictures and makes a picture"),
        taken("image", "a file, or up to 16 of them: PNG, JPEG, WebP, GIF, AVIF, TIFF or BMP"),
        taken("prompt", "what is to be made of them; empty where the pipeline needs no words, as `upscale`"),
        *_OF_BOTH,
        *_IGNORED,
        ignored("input_fidelity", "no pipeline has it as a parameter"),
        refused("mask", "no pipeline takes one"),
        refused("markup", "no pipeline takes one"),
        *_REFUSED,
    ),
)
