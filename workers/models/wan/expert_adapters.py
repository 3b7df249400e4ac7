"""``ExpertAdapters``: LoRA adapters of Wan's two transformers, of which one may be for either or for both.

An adapter's directory has a folder for each transformer that it changes, named as that of the checkpoint. Diffusers
saves the two parts as files of the same names, so that nothing in a file says for which transformer it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from omni_jobs.errors import ConfigError
from omni_jobs.prompts.checkpoint_files import check_checkpoint
from workers.models.wan.model_index import EXPERTS
from workers.runners.diffusion.lora_adapters import LoraAdapters, check_name


class ExpertAdapters:
    """The adapters of both transformers, by name; at first there are none. For one thread."""

    def __init__(self) -> None:
        self._of_experts = [LoraAdapters() for _ in EXPERTS]
        self._names: tuple[str, ...] = ()

    def load(self, transformers: Sequence[torch.nn.Module], directories: Mapping[str, str], dtype: torch.dtype) -> None:
        """Add the adapters in these directories to the transformers, to be computed in ``dtype``.

        Raises ConfigError naming the module and the file, as ``LoraAdapters.load`` does, and for a directory without a
        folder of either transformer.
        """
        for name, directory in directories.items():
            try:
                check_checkpoint(Path(directory))
            except ConfigError as error:
                raise ConfigError(str(error), field=f"engine.lora_modules.{name}") from error
            if not any((Path(directory) / part).is_dir() for part in EXPERTS):
                message = f"the adapter has no folder {' or '.join(EXPERTS)}, which says what it is for"
                raise ConfigError(message, file=directory, field=f"engine.lora_modules.{name}")
        for part, adapters, transformer in zip(EXPERTS, self._of_experts, transformers, strict=True):
            folders = {name: Path(directory) / part for name, directory in directories.items()}
            own = {name: str(folder) for name, folder in folders.items() if folder.is_dir()}
            adapters.load(transformer, own, dtype)
        self._names = tuple(directories)

    def check(self, name: str | None) -> None:
        """Raise ModelError for a name that no adapter has. None: the model as it is."""
        check_name(name, self._names)

    def identity(self, name: str | None) -> str | None:
        """Return what tells an adapter's weights from others'; None for the model as it is."""
        if name is None:
            return None
        return " ".join(each.identity(name) or "none" for each in self._of_experts)

    def rows(self, expert: int, names: Sequence[str | None]) -> AbstractContextManager[None]:
        """Let the forwards of a transformer within have these adapters, row by row, as far as they are for it."""
        return self._of_experts[expert].rows(names)
