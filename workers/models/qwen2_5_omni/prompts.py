"""The prompts of Qwen2.5-Omni: its chat template, its placeholders and the tokens of each medium.

``workers.models.qwen3_omni.prompts`` builds on them.

The counts follow Transformers' Qwen2_5OmniProcessor, which vLLM uses too; a test compares the two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omni_jobs.errors import InvalidRequest
from omni_jobs.media import AudioInfo, MediaInfo
from omni_jobs.pipelines.stage_config import StageConfig
from omni_jobs.prompts.chat_template import ChatTemplate
from omni_jobs.prompts.checkpoint_files import positive, processor_part, read_json
from omni_jobs.prompts.messages import parts_of
from omni_jobs.prompts.prompt_tokenizer import PromptTokenizer
from workers.models.qwen_vision import MAX_FRAME_PIXELS, MIN_FRAME_PIXELS, QwenVision, visual_tokens

CODEC_PROMPT_TOKENS = 2
"""Tokens that end the talker's prompt: codec pad and codec bos."""


class QwenOmniPromptRenderer:
    """The prompt renderer of a Qwen2.5-Omni checkpoint, and the base of that of Qwen3-Omni.

    model_type      of the checkpoint's config
    talker_context  where in it the talker's context stands
    added_tokens    tokens that a stage adds to the thinker's prompt at least: one of its reply, and what makes the
                    talker's prompt longer
    frame_pixels    the least and most of a video's resized frame; this processor reads none in the checkpoint
    hears_long      whether audio may be longer than one piece of the feature extractor
    """

    model_type = "qwen2_5_omni"
    talker_context: Sequence[str] = ("talker_config", "max_position_embeddings")
    added_tokens: Mapping[str, int] = {"thinker": 1, "talker": CODEC_PROMPT_TOKENS + 1}
    frame_pixels = (MIN_FRAME_PIXELS, MAX_FRAME_PIXELS)
    hears_long = False

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError when a file or a field is missing."""
        self._template = ChatTemplate(model_dir)
        self._tokenizer = PromptTokenizer(model_dir, self._template)
        config = read_json(model_dir / "config.json")
        file = str(model_dir / "config.json")
        self.max_model_len = positive(config, ("thinker_config", "text_config", "max_position_embeddings"), file)
        self.hidden_size = positive(config, ("thinker_config", "text_config", "hidden_size"), file)
        self._context = {
            "thinker": self.max_model_len,
            "talker": positive(config, self.talker_context, file),
        }
        file = str(model_dir / "preprocessor_config.json")
        self._pictures = QwenVision.read(model_dir)
        least, most = self.frame_pixels
        self._frames = replace(self._pictures, min_pixels=least, max_pixels=most)
        audio = processor_part(model_dir, "feature_extractor")
        self._sampling_rate = positive(audio, ("sampling_rate",), file)
        self._hop = positive(audio, ("hop_length",), file)
        self.longest_audio_s: float | None = None if self.hears_long else positive(audio, ("chunk_length",), file)

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return config.get("model_type") == cls.model_type

    def check(self, request: Mapping[str, Any]) -> None:
        self._tokenizer.check(request["messages"])

    def render(self, request: Mapping[str, Any]) -> str:
        return self._template.render(request["messages"])

    def encode(self, request: Mapping[str, Any]) -> None:
        """Return None, because the engine's processor tokenizes the prompt and expands its placeholders."""

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        expanded = sum(self._media_tokens(media[part["media"]], field) - 1 for field, part in parts_of(request))
        return self._tokenizer.count(request["messages"], self.max_model_len) + expanded

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        limits = []
        for stage in stages:
            component = stage.component
            if component is not None and component in self.added_tokens:
                context = self._context[component]
                limits.append(min(stage.engine.get("max_model_len") or context, context) - self.added_tokens[component])
        return min(limits, default=self.max_model_len - 1)

    def _media_tokens(self, info: MediaInfo, field: str) -> int:
        if isinstance(info, AudioInfo):
            return self._audio_tokens(info, field)
        return visual_tokens(info, field, self._pictures, self._frames)

    def _audio_tokens(self, info: AudioInfo, field: str) -> int:
        """Count a clip's tokens. Raise InvalidRequest for a clip that is too long for the model."""
        longest = self.longest_audio_s
        if longest is not None and info.samples > longest * self._sampling_rate:
            message = f"the audio is too long: this model hears at most {longest:g} s at a time"
            raise InvalidRequest(message, field=field)
        return self.heard_tokens(-(-info.samples // self._hop))

    def heard_tokens(self, mel_frames: int) -> int:
        """Count the tokens of a number of mel frames: one per four, because the encoder halves them twice."""
        halved = (mel_frames - 1) // 2 + 1
        return (halved - 2) // 2 + 1
