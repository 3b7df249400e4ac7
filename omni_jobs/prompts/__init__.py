"""Prompts: how a checkpoint's family turns messages into text, and how long that is in tokens.

load_renderer(architecture, directory)   the renderer of a checkpoint, an entry point of ``omni_jobs.prompts``
architectures_of(directory)              which of them take a checkpoint
Renderers(settings).of(pipeline)         the renderer of a pipeline on this host

The same renderer counts tokens when a job is admitted and renders the prompt in the
worker, so both agree. It needs no torch and no transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from omni_jobs.errors import ConfigError, ModelMissing
from omni_jobs.pipelines.declarations import PROMPTS
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.prompts.checkpoint_files import check_checkpoint, read_json

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.settings import Settings

__all__ = ["PromptRenderer", "Renderers", "architectures_of", "load_renderer"]


class PromptRenderer(Protocol):
    """One checkpoint's way from messages to a prompt. Safe for threads.

    ``request`` is an admitted one: ``messages`` with string contents, or with parts
    ``{"type": "text", "text": …}`` and ``{"type": "audio" | "image" | "video", "media": n}``.
    """

    max_model_len: int  # tokens of prompt and reply together in the stage that reads the prompt
    hidden_size: int  # of that stage: the width of its input embeddings
    longest_audio_s: float | None  # of one clip, in seconds: longer ones are not decoded to their end; None: any

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raises ConfigError naming the file."""

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        """Whether a checkpoint with this ``config.json`` is of this architecture."""

    def check(self, request: Mapping[str, Any]) -> None:
        """Raises InvalidRequest for text that would be read as the template's own markup."""

    def render(self, request: Mapping[str, Any]) -> str:
        """The prompt, one placeholder per medium. Raises InvalidRequest when the template refuses."""

    def encode(self, request: Mapping[str, Any]) -> Sequence[int] | None:
        """The prompt's token ids, where text is all it may hold. None: the engine tokenizes what ``render`` gives.

        Raises InvalidRequest when a text would change the structure of the prompt.
        """

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Tokens of the prompt with every placeholder expanded; ``media`` in the order of their numbers.

        Raises InvalidRequest for a medium the model cannot take whole. Text far beyond the
        model's length is not tokenized: the number is then a lower bound.
        """

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        """The longest prompt, in tokens, with which these stages of a job can run."""


@lru_cache(maxsize=16)
def load_renderer(architecture: str, model_dir: Path) -> PromptRenderer:
    """Loaded once per process and checkpoint. Raises ConfigError."""
    found = entry_points(group=PROMPTS, name=architecture)
    if not found:
        raise ConfigError(f"no architecture {architecture!r} installed", field="model.architecture")
    check_checkpoint(model_dir)
    kind: type[PromptRenderer] = next(iter(found)).load()
    return kind(model_dir)


def architectures_of(model_dir: Path) -> frozenset[str]:
    """The installed architectures that take this checkpoint, by its ``config.json``. Raises ConfigError."""
    check_checkpoint(model_dir)
    config = read_json(model_dir / "config.json")
    return frozenset(entry.name for entry in entry_points(group=PROMPTS) if entry.load().takes(config))


class Renderers:
    """The renderers of the pipelines, as this host's checkpoints allow."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loaded: dict[tuple[str, Path], PromptRenderer] = {}

    def are_loaded(self, pipeline: Pipeline) -> bool:
        """Whether ``of`` has the pipeline's at hand: it may take seconds otherwise."""
        return pipeline.model is None or self._place_of(pipeline) in self._loaded

    def of(self, pipeline: Pipeline) -> PromptRenderer | None:
        """None for a pipeline without a model. Raises ModelMissing; a checkpoint may still come."""
        if pipeline.model is None:
            return None
        place = self._place_of(pipeline)
        if place is None:
            raise ModelMissing(f"pipeline {pipeline.name} has no checkpoint here: set OMNI_JOBS_MODELS", field="model")
        try:
            found = self._loaded.get(place) or load_renderer(*place)
        except ConfigError as error:
            raise ModelMissing(f"pipeline {pipeline.name} cannot take jobs: {error}", field="model") from error
        self._loaded[place] = found
        return found

    def _place_of(self, pipeline: Pipeline) -> tuple[str, Path] | None:
        if pipeline.model is None:
            return None
        path = self._settings.models.get(pipeline.name) or pipeline.model.path
        return None if path is None else (pipeline.model.architecture, Path(path))
