"""What the builders of tiny checkpoints share: a directory that appears whole, random weights, a tokenizer of bytes.

A builder's module ends with these lines, where ``write(directory, seed)`` writes the files of a checkpoint:

    TINY = TinyDirectory(version=1, write=write)
    build_tiny_checkpoint = TINY.build

    if __name__ == "__main__":
        TINY.main(__doc__)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import string
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omni_jobs.errors import ConfigError

if TYPE_CHECKING:
    import torch

MARKER = "tiny_checkpoint.json"
"""The file that a tiny checkpoint is known by: its version and seed."""

BYTES = 256
"""The byte symbols, which come first in the vocabulary of every tiny tokenizer."""


@dataclass(frozen=True, slots=True)
class TinyDirectory:
    """Builds the tiny checkpoints of one family.

    version  of what ``write`` writes; a directory of another version is built anew
    write    writes the checkpoint of a seed into an empty directory: write(directory, seed)
    """

    version: int
    write: Callable[[Path, int], None]

    def build(self, directory: Path, *, seed: int = 0) -> Path:
        """Build the checkpoint of this seed at ``directory`` unless it is there, and return that path.

        The directory appears whole or not at all. Several processes may build the same one at once. A tiny checkpoint
        of another seed or version is replaced. Raise ConfigError when ``directory`` holds anything but a tiny
        checkpoint.
        """
        directory = Path(directory)
        mark = {"version": self.version, "seed": seed}
        if _mark_of(directory) == mark:
            return directory
        _refuse_foreign(directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            self.write(building, seed)
            (building / MARKER).write_text(json.dumps(mark), encoding="utf-8")
            building.chmod(0o755)
            _move(building, directory, mark)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return directory

    def main(self, description: str) -> None:
        """Build the checkpoint that the command line of a module asks for, and print its path."""
        module = sys.modules["__main__"].__spec__
        prog = None if module is None else f"python -m {module.name}"
        parser = argparse.ArgumentParser(prog=prog, description=description.splitlines()[0])
        parser.add_argument("directory", type=Path)
        parser.add_argument("--seed", type=int, default=0)
        arguments = parser.parse_args()
        print(self.build(arguments.directory, seed=arguments.seed))


def _mark_of(directory: Path) -> object:
    """Return the marker's version and seed; None where there is no tiny checkpoint."""
    try:
        return json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _refuse_foreign(directory: Path) -> None:
    """Raise ConfigError for a directory or file that is no tiny checkpoint."""
    try:
        names = os.listdir(directory)  # one call, because another process may rename it at any moment
    except FileNotFoundError:
        return
    except NotADirectoryError:
        names = [directory.name]
    if names and MARKER not in names:
        raise ConfigError(f"{directory} is there already and is no tiny checkpoint", field="directory")


def _move(building: Path, directory: Path, mark: object) -> None:
    """Rename the built directory into place; keep the one of another process that built the same first."""
    outdated = building.with_name(building.name + ".old")
    while True:
        try:
            building.rename(directory)
            return
        except OSError:
            if _mark_of(directory) == mark:
                return
            _refuse_foreign(directory)
            with contextlib.suppress(FileNotFoundError):
                directory.rename(outdated)
                shutil.rmtree(outdated)


def write_json(path: Path, data: object) -> None:
    """Write a JSON file as people read it."""
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def randomise(name: str, weight: torch.Tensor, generator: torch.Generator, gain: float) -> None:
    """Draw a parameter anew, in place: weights with the deviation gain / sqrt(fan in), biases with 0.02.

    Other vectors (norms, activations) keep their initial values. The usual deviation of 0.02 makes layers so small
    that what comes out is the same for all inputs.
    """
    if weight.ndim > 1:
        weight.normal_(std=gain / math.sqrt(weight[0].numel()), generator=generator)
    elif name.endswith("bias"):
        weight.normal_(std=0.02, generator=generator)


def printable_only(lm_head: torch.Tensor, end: int) -> None:
    """Zero the rows of all tokens but printable ASCII and the token ``end``, so that no other token is sampled.

    A random model would otherwise emit media placeholders and bytes that are no UTF-8.
    """
    printable = [byte for byte in string.printable.encode() if byte == 10 or byte >= 32]
    others = [token for token in range(len(lm_head)) if token not in {*printable, end}]
    lm_head[others] = 0


def byte_tokenizer(
    special_tokens: Sequence[str], *, whole_words: Iterable[str] = (), context: int, **arguments: Any
) -> Any:
    """Return a Qwen2Tokenizer of the 256 byte symbols, then ``special_tokens``, then what makes words whole.

    Each of ``whole_words`` becomes one token wherever it stands alone; a word with a space before it says so:
    " image". ``context``: the tokens of the longest text. ``arguments``: further ones of the tokenizer.
    """
    from transformers import Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    symbols: dict[int, str] = bytes_to_unicode()
    vocabulary = {symbol: byte for byte, symbol in symbols.items()}
    vocabulary |= {token: BYTES + n for n, token in enumerate(special_tokens)}
    merges: list[Any] = []  # pairs, whatever the annotation in Transformers says
    for word in whole_words:
        letters = [symbols[byte] for byte in word.encode()]
        for end in range(1, len(letters)):  # each merge adds one letter to the word's beginning
            merge = ("".join(letters[:end]), letters[end])
            if merge not in merges:
                merges.append(merge)
            vocabulary.setdefault("".join(merge), len(vocabulary))
    roles: Any = {"unk_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=merges, model_max_length=context, **roles, **arguments)
    tokenizer.add_tokens(list(special_tokens), special_tokens=True)
    return tokenizer
