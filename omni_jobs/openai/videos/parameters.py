"""``VIDEOS``: what becomes of each parameter of a video that is asked for."""

from typing import Final

from omni_jobs.openai.parameters import ParameterTable, taken

VIDEOS: Final = ParameterTable(
    "POST /v1/videos",
    (
        taken("model", "the pipeline, which takes text and makes a video"),
        taken("prompt", "what the video shows"),
        taken("seconds", "the stage's, as are all below but those said otherwise; refused where no stage has it"),
        taken("size", "`WIDTHxHEIGHT`: the stage's `width` and `height`, or `size`"),
        taken("input_reference", "a file: a picture, or a video; in JSON `image_url`, as in `POST /v1/jobs`"),
        taken("seed", "vLLM-Omni's: the job's"),
        taken("negative_prompt", "vLLM-Omni's"),
        taken("num_inference_steps", "vLLM-Omni's: the stage's `steps`, or `num_inference_steps`"),
        taken("guidance_scale", "vLLM-Omni's"),
        taken("guidance_scale_2", "vLLM-Omni's"),
        taken("true_cfg_scale", "vLLM-Omni's"),
        taken("boundary_ratio", "vLLM-Omni's"),
        taken("flow_shift", "vLLM-Omni's"),
        taken("fps", "vLLM-Omni's"),
        taken("num_frames", "vLLM-Omni's; refused beside `seconds`"),
        taken("extra_params", "vLLM-Omni's: an object of further parameters of the stages"),
        taken("stages", "not OpenAI's: parameters by stage, as in `POST /v1/jobs`"),
    ),
)
