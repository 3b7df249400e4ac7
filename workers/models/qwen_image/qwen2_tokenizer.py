"""Load the tokenizer of a Qwen-Image checkpoint without Transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import read_json
from omni_jobs.prompts.prompt_tokenizer import read_tokenizer

# How Qwen2's tokenizer cuts a text into words. Source: Transformers, models/qwen2/tokenization_qwen2.py.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def load_qwen2_tokenizer(directory: Path) -> Tokenizer:
    """Return the tokenizer of ``tokenizer.json``, or else of ``vocab.json`` and ``merges.txt``, which Qwen-Image has.

    Raise ConfigError naming the file that is missing or cannot be read.
    """
    if (directory / "tokenizer.json").is_file():
        return read_tokenizer(directory)
    vocabulary, merges = directory / "vocab.json", directory / "merges.txt"
    for path in (vocabulary, merges):
        if not path.is_file():
            raise ConfigError("the checkpoint lacks this file", file=str(path))
    config = directory / "tokenizer_config.json"
    added = read_json(config).get("added_tokens_decoder")
    if not isinstance(added, dict):
        raise ConfigError("not an object", file=str(config), field="added_tokens_decoder")
    try:
        tokenizer = Tokenizer(BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # tokenizers raises nothing more precise
        raise ConfigError(f"vocabulary and merges do not fit: {error}", file=str(merges)) from error
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, added, str(config))
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, added: Mapping[str, Any], file: str) -> None:
    """Add the tokens of ``added_tokens_decoder`` under their ids. Raise ConfigError for one that gets another."""
    try:
        tokens = [
            (int(number), AddedToken(each["content"], normalized=False, special=each["special"]))
            for number, each in added.items()
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"not tokens by id: {error!r}", file=file, field="added_tokens_decoder") from error
    for number, token in sorted(tokens, key=lambda pair: pair[0]):
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != number:
            raise ConfigError(f"the id of {token.content} is not {number}", file=file, field="added_tokens_decoder")
