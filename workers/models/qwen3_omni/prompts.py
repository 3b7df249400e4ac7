"""The prompts of Qwen3-Omni: Qwen2.5-Omni's with other counts of what audio and videos expand to.

The counts follow Transformers' Qwen3OmniMoeProcessor, which vLLM uses too; a test compares the two.
"""

from collections.abc import Mapping
from pathlib import Path

from omni_jobs.prompts.checkpoint_files import positive, read_json
from workers.models.qwen2_5_omni.prompts import QwenOmniPromptRenderer
from workers.models.qwen3_omni.talker_prompt import ROLE_TOKENS, TALKER_TAIL

_TOKENS_OF_A_WINDOW = 13


class Qwen3OmniPromptRenderer(QwenOmniPromptRenderer):
    """The prompt renderer of a Qwen3-Omni checkpoint."""

    model_type = "qwen3_omni_moe"
    talker_context = ("talker_config", "text_config", "max_position_embeddings")
    added_tokens: Mapping[str, int] = {"thinker": 1, "talker": TALKER_TAIL - ROLE_TOKENS + 1}
    frame_pixels = (128 * 32 * 32, 768 * 32 * 32)
    hears_long = True

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError when a file or a field is missing."""
        super().__init__(model_dir)
        file = model_dir / "config.json"
        half = positive(read_json(file), ("thinker_config", "audio_config", "n_window"), str(file))
        self._window = 2 * half

    def heard_tokens(self, mel_frames: int) -> int:
        """Count the tokens of a number of mel frames: 13 of each whole window, the rest halved three times."""
        windows, rest = divmod(mel_frames, self._window)
        for _ in range(3):
            rest = (rest - 1) // 2 + 1
        return windows * _TOKENS_OF_A_WINDOW + rest
