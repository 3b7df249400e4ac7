"""What several stages of Qwen2.5-Omni read in its checkpoint: the talker's token ids, and the table of speakers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import positive, read_json

SPEAKERS: Final = "spk_dict.pt"


def talker_ids(checkpoint: Path, *names: str) -> list[int]:
    """Return the ids of some tokens: ``codec_end`` is ``tts_codec_end_token_id`` of the talker's config.

    Raise ConfigError naming the file and the field that is missing.
    """
    file = checkpoint / "config.json"
    config = read_json(file)
    return [positive(config, ("talker_config", f"tts_{name}_token_id"), str(file)) for name in names]


def read_speakers(checkpoint: Path, voices: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    """Return what the checkpoint has of each speaker: the token ``bos_token``, the tensors ``cond`` and ``ref_mel``.

    Raise ConfigError naming the file; each of ``voices`` must be there.
    """
    path = checkpoint / SPEAKERS
    try:
        # The checkpoint's format is a pickle; weights_only allows tensors and plain containers alone.
        speakers: dict[str, dict[str, Any]] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load passes on any error of the unpickler
        raise ConfigError(f"the speakers cannot be read: {error}", file=str(path)) from error
    if not isinstance(speakers, dict) or not all(isinstance(name, str) for name in speakers):
        raise ConfigError("it is not a table of speakers by their names", file=str(path))
    if missing := [voice for voice in voices if voice not in speakers]:
        known = ", ".join(sorted(speakers))
        raise ConfigError(
            f"no speaker {', '.join(missing)}; the checkpoint has {known}", file=str(path), field="voices"
        )
    return speakers
