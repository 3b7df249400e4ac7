"""Convert a GGUF file of a Llama-family model to a checkpoint directory in the Hugging Face layout.

    python -m workers.models.causal_lm.gguf FILE.gguf DIRECTORY

GGUF is llama.cpp's format: one file with the tokenizer, the chat template and the weights in blocks of few
bits. Transformers reads the file and unpacks the weights to bfloat16; the precision lost in quantization
does not come back. This module adds the other files that an engine needs: ``tokenizer.json``, the chat
template and the ids that end generation.
"""

import argparse
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_jobs.errors import ConfigError

_END_TOKENS = ("eos", "eot", "eom")  # the end of a text, of a turn, of a message


def convert_gguf(file: Path, directory: Path) -> Path:
    """Write the file's checkpoint to ``directory``, whole or not at all, and return its absolute path.

    Raise ConfigError when the file is no GGUF of a model that Transformers knows, when it has no
    tokenizer, chat template or end token, and when ``directory`` exists.
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
    """Read the file's key-value section. Raise ConfigError for a file that cannot be converted."""
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

    end_ids = _end_ids(metadata, file)
    location = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**location)
        model = AutoModelForCausalLM.from_pretrained(
            **location, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
    except (ValueError, KeyError, TypeError, RuntimeError, NotImplementedError, ImportError, OSError) as error:
        raise ConfigError(f"Transformers cannot make a model of it: {error}", file=str(file)) from error
    tokenizer.chat_template = metadata["tokenizer.chat_template"]
    if max(end_ids) >= len(tokenizer):
        message = f"token {max(end_ids)} is not in the vocabulary"
        raise ConfigError(message, file=str(file), field="tokenizer.ggml.tokens")
    model.generation_config = GenerationConfig(
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id"),
        eos_token_id=end_ids,
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if not (directory / "tokenizer.json").is_file():
        raise ConfigError("its tokenizer has no tokenizer.json", file=str(file), field="tokenizer.ggml.model")
    # Drop the file's own name for the model, because Transformers would look it up.
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config.pop("_name_or_path", None)
    config.pop("_model_name_or_path", None)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _end_ids(metadata: Mapping[str, Any], file: Path) -> list[int]:
    """Return the ids that end a text, a turn or a message, each once. Raise ConfigError when the file has none."""
    ids = [metadata.get(f"tokenizer.ggml.{end}_token_id") for end in _END_TOKENS]
    distinct = list(dict.fromkeys(int(token) for token in ids if token is not None))
    if not distinct:
        raise ConfigError("the file does not say which token ends a text", file=str(file))
    return distinct


def main() -> None:
    description = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m workers.models.causal_lm.gguf", description=description)
    parser.add_argument("file", type=Path)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    try:
        print(convert_gguf(arguments.file, arguments.directory))
    except ConfigError as error:
        sys.exit(f"workers.models.causal_lm.gguf: {error}")


if __name__ == "__main__":
    main()
