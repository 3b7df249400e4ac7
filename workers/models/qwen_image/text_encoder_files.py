"""``TextEncoderFiles``: what a prompt renderer reads of the text encoder in a checkpoint of Qwen-Image's kind."""

from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import positive, read_json
from workers.models.qwen_image.qwen2_tokenizer import load_qwen2_tokenizer

TOKENIZER = "tokenizer"
"""The folder of the tokenizer in the checkpoint's directory."""


class TextEncoderFiles(NamedTuple):
    """The encoder's longest prompt in tokens, the width of its rows, and its tokenizer."""

    max_model_len: int
    hidden_size: int
    tokenizer: Tokenizer

    @classmethod
    def read(cls, model_dir: Path, prefix: str, prefix_tokens: int) -> "TextEncoderFiles":
        """Read the small files of a checkpoint whose template begins with ``prefix``, which has so many tokens.

        Raise ConfigError when a file or a field is missing, or the tokenizer makes another number of them.
        """
        file = model_dir / "text_encoder" / "config.json"
        config = read_json(file)
        within: tuple[str, ...] = ("text_config",) if isinstance(config.get("text_config"), dict) else ()
        directory = model_dir / TOKENIZER
        tokenizer = load_qwen2_tokenizer(directory)
        tokens = len(tokenizer.encode(prefix, add_special_tokens=False).ids)
        if tokens != prefix_tokens:
            raise ConfigError(
                f"the template begins with {prefix_tokens} tokens, and with {tokens} of this tokenizer",
                file=str(directory),
            )
        return cls(
            positive(config, (*within, "max_position_embeddings"), str(file)),
            positive(config, (*within, "hidden_size"), str(file)),
            tokenizer,
        )
