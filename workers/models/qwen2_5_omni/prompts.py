"""The prompts of Qwen2.5-Omni: its chat template, its placeholders and the tokens of each medium.

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

# Tokens that a stage adds to the thinker's prompt at least: one of its reply, and the end of the talker's prompt.
_MIN_ADDED_TOKENS = {"thinker": 1, "talker": CODEC_PROMPT_TOKENS + 1}


class QwenOmniPromptRenderer:
    """The prompt renderer of a Qwen2.5-Omni checkpoint."""

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
            "talker": positive(config, ("talker_config", "max_position_embeddings"), file),
        }
        file = str(model_dir / "preprocessor_config.json")
        self._pictures = QwenVision.read(model_dir)
        # This processor reads no pixels of a frame from the checkpoint.
        self._frames = replace(self._pictures, min_pixels=MIN_FRAME_PIXELS, max_pixels=MAX_FRAME_PIXELS)
        audio = processor_part(model_dir, "feature_extractor")
        self._sampling_rate = positive(audio, ("sampling_rate",), file)
        self._hop = positive(audio, ("hop_length",), file)
        longest_audio_s = positive(audio, ("chunk_length",), file)
        self.longest_audio_s: float | None = longest_audio_s
        self._longest_audio = longest_audio_s * self._sampling_rate

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return config.get("model_type") == "qwen2_5_omni"

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
            if stage.component in _MIN_ADDED_TOKENS:
                context = self._context[stage.component]
                limits.append(
                    min(stage.engine.get("max_model_len") or context, context) - _MIN_ADDED_TOKENS[stage.component]
                )
        return min(limits, default=self.max_model_len - 1)

    def _media_tokens(self, info: MediaInfo, field: str) -> int:
        if isinstance(info, AudioInfo):
            return self._audio_tokens(info, field)
        return visual_tokens(info, field, self._pictures, self._frames)

    def _audio_tokens(self, info: AudioInfo, field: str) -> int:
        """Count a clip's tokens: one per four mel frames, because the encoder halves them twice.

        Raise InvalidRequest for a clip that is too long for the model.
        """
        if info.samples > self._longest_audio:
            message = f"the audio is too long: this model hears at most {self.longest_audio_s:g} s at a time"
            raise InvalidRequest(message, field=field)
        mel_frames = -(-info.samples // self._hop)
        halved = (mel_frames - 1) // 2 + 1
        return (halved - 2) // 2 + 1
