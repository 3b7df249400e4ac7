"""The input processor ``talker2code2wav``: it makes code2wav's prompt from the talker's codes."""

import torch

from omni_jobs.errors import ModelError
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.checkpoint_files import positive, read_json
from workers.models.flow_processor import FlowProcessor
from workers.models.qwen2_5_omni.parameters import OdeParameters
from workers.runners.diffusion.prompt import DiffusionPrompt
from workers.stages.engine_args import OmniModelConfig, needed_model
from workers.stages.tensors import to_torch
from workers.stages.types import StageInput


class Talker2Code2WavProcessor(FlowProcessor):
    """Makes code2wav's prompt: cuts the talker's codes at their end token and names the speaker.

    Its name in a stage config is ``talker2code2wav``.
    """

    def __init__(self, stage: StageConfig, model: OmniModelConfig | None) -> None:
        """Read the codec's end tokens. Raise ConfigError when there is no model or its config lacks these tokens."""
        super().__init__(stage, model)
        model = needed_model(model, stage)
        file = model.path / "config.json"
        ends = ("tts_codec_pad_token_id", "tts_codec_end_token_id")  # both end the talker's codes
        config = read_json(file)
        self._ends = torch.tensor([positive(config, ("talker_config", name), str(file)) for name in ends])
        self._default_voice = model.voices[0] if model.voices else None

    def __call__(self, stage_input: StageInput[OdeParameters]) -> DiffusionPrompt[OdeParameters]:
        """Return the prompt from the payload's tensor ``codes`` int64 [N] and value ``voice``.

        The default voice is the pipeline's first. Raise PayloadCorrupt naming a field that is missing or wrong, and
        ModelError when the talker said nothing.
        """
        information = self.information(stage_input, "codes")
        codes = to_torch(information.tensor("codes", dtypes=frozenset({"I64"}), rank=1))
        if "voice" in information.values or self._default_voice is None:
            voice = information.value("voice", str)
        else:
            voice = self._default_voice
        ends = torch.nonzero(torch.isin(codes, self._ends))
        spoken = codes[: int(ends[0]) if len(ends) else None].clone()  # a copy lets the payload's memory be freed
        if not len(spoken):
            raise ModelError("the talker ended before it said anything", field="codes")
        return DiffusionPrompt({"codes": spoken}, {"voice": voice}, stage_input.parameters, stage_input.seed)
