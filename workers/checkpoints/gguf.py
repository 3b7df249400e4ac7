"""Makes a checkpoint directory of the Hugging Face layout from a GGUF file of a Llama-family model.

    python -m workers.checkpoints.gguf FILE.gguf DIRECTORY

GGUF is llama.cpp's format: weights, tokenizer and chat template in one file, the weights
in blocks of few bits. They are unpacked to bfloat16; what the quantization rounded away
stays away. Transformers reads the file; this module sees to what an engine needs beside
the weights: ``tokenizer.json``, the chat template, and where generation ends.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["convert_gguf"]

_ENDS = ("eos", "eot", "eom")  # of the text, of a turn, of a message


def convert_gguf(file: Path, directory: Path) -> Path:
    """The checkpoint of this file at ``directory``, which appears whole or not at all.

    Raises ConfigError when the file is no GGUF of a model Transformers knows, when it lacks
    a tokenizer or a chat template, and when there is something at ``directory`` already.
    """
    directory = directory.absolute()
    if directory.exists():
        raise ConfigError(f"{directory} is there already", field="directory")
    metadata = _metadata(file)
    directory.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        _write(file.absolute(), metadata, building)
        for path in (building, *building.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        try:
            building.rename(directory)
        except OSError as error:
            raise ConfigError(f"{directory} cannot be put there: {error}", field="directory") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return directory


def _metadata(file: Path) -> Mapping[str, Any]:
    from transformers.integrations.gguf.reader import read_gguf_metadata

    if not file.is_file():
        raise ConfigError("no such file", file=str(file))
    try:
        metadata, tensors = read_gguf_metadata(str(file))
    except (ValueError, struct.error, OSError) as error:
        raise ConfigError(f"not a GGUF file that can be read: {error}", file=str(file)) from error
    if not tensors:
        raise ConfigError("the file holds no weights", file=str(file))
    for key in ("tokenizer.ggml.tokens", "tokenizer.chat_template"):
        if key not in metadata:
            raise ConfigError("the file lacks this field", file=str(file), field=key)
    return metadata


def _write(file: Path, metadata: Mapping[str, Any], directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    ends = _end_ids(metadata, file)
    named = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**named)
        model = AutoModelForCausalLM.from_pretrained(
            **named, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
    except (ValueError, KeyError, TypeError, RuntimeError, NotImplementedError, ImportError, OSError) as error:
        raise ConfigError(f"Transformers cannot make a model of it: {error}", file=str(file)) from error
    tokenizer.chat_template = metadata["tokenizer.chat_template"]
    _check_tokens(tokenizer, ends, file)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id"),
        eos_token_id=ends,
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if not (directory / "tokenizer.json").is_file():
        raise ConfigError("its tokenizer has no tokenizer.json", file=str(file), field="tokenizer.ggml.model")
    # The file's own name for the model, which Transformers would look up.
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config.pop("_name_or_path", None)
    config.pop("_model_name_or_path", None)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _end_ids(metadata: Mapping[str, Any], file: Path) -> list[int]:
    """The ids that end generation: of the text, and of the assistant's turn where that is another."""
    named = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in _ENDS]
    found = list(dict.fromkeys(int(token) for token in named if token is not None))
    if not found:
        raise ConfigError("the file does not say which token ends a text", file=str(file))
    return found


def _check_tokens(tokenizer: PreTrainedTokenizerBase, ends: Sequence[int], file: Path) -> None:
    for token in ends:
        if token >= len(tokenizer):
            raise ConfigError(f"token {token} is not in the vocabulary", file=str(file), field="tokenizer.ggml.tokens")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workers.checkpoints.gguf", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    try:
        print(convert_gguf(arguments.file, arguments.directory))
    except ConfigError as error:
        sys.exit(f"gguf_checkpoint: {error}")


if __name__ == "__main__":
    main()
