"""The input processor ``tokens2latents``: it makes the denoising's prompt of image tokens and a job's message."""

from omni_jobs.errors import PayloadCorrupt
from omni_jobs.pipelines.stage_config import StageConfig
from workers.models.glm_image.glyphs import glyph_texts
from workers.models.glm_image.parameters import DenoiseParameters
from workers.models.glm_image.prompts import text_of
from workers.models.glm_image.sources import sources_of
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput


class Tokens2LatentsProcessor:
    """Adds the message's glyph texts and source pictures to the image tokens.

    Its name in a stage config is ``tokens2latents``.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Note which stage writes the image tokens."""
        self._stage = stage
        self._generate = next(name for name, flow in stage.inputs.items() if flow == "image_tokens")

    def __call__(self, stage_input: StageInput[DenoiseParameters]) -> DiffusionPrompt[DenoiseParameters]:
        """Return the prompt, of ``token_ids`` int64 [h * w], ``height``, ``width`` and ``glyph_texts``.

        Of the source pictures it has lists: ``source_ids``, each int64 [h, w], and ``source_latents``, each float
        [C, 4 h, 4 w]. Raise PayloadCorrupt naming a field that is missing or wrong.
        """
        information = stage_input.upstream[self._generate].additional_information
        if information is None:
            raise PayloadCorrupt("missing", field="additional_information")
        token_ids = information.tensor("token_ids", dtypes=frozenset({"I64"}), rank=1)
        sources = sources_of(stage_input, self._stage)
        return DiffusionPrompt(
            {
                "token_ids": to_torch(token_ids).clone(),  # a copy lets the payload's memory be freed
                "source_ids": [source.token_ids for source in sources],
                "source_latents": [source.latents for source in sources],
            },
            {
                "height": information.value("height", int),
                "width": information.value("width", int),
                "glyph_texts": glyph_texts(text_of(stage_input.request)),
            },
            stage_input.parameters,
            stage_input.seed,
            stage_input.previews,
        )
