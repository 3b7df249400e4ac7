"""The renderers that turn a job's messages into a prompt and count its tokens: one per architecture."""

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


class PromptRenderer(Protocol):
    """The prompt renderer of one checkpoint: writes its prompts and counts their tokens. Safe for threads.

    A ``request`` is an admitted one: its ``messages`` have string contents, or parts
    ``{"type": "text", "text": …}`` and ``{"type": "audio" | "image" | "video", "media": n}``.
    """

    max_model_len: int  # tokens of prompt and reply together in the stage that reads the prompt
    hidden_size: int  # of that stage: the width of its input embeddings
    longest_audio_s: float | None  # seconds; admission decodes no more of a clip. None: no bound

    def __init__(self, model_dir: Path) -> None:
        """Read the checkpoint's small files. Raise ConfigError naming the file that is missing or wrong."""

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint with this ``config.json`` is of this architecture."""

    def check(self, request: Mapping[str, Any]) -> None:
        """Raise InvalidRequest for text that the tokenizer would read as the template's own markup."""

    def render(self, request: Mapping[str, Any]) -> str:
        """Return the prompt's text, one placeholder per medium. Raise InvalidRequest when the template refuses."""

    def encode(self, request: Mapping[str, Any]) -> Sequence[int] | None:
        """Return the prompt's token ids; None where the engine tokenizes the text of ``render`` itself.

        Raise InvalidRequest when a text would add or change a special token of the prompt.
        """

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Count the prompt's tokens, every placeholder expanded; ``media`` in the order of their numbers.

        The count is a lower bound for text far beyond the model's length, because such text is not tokenized.
        Raise InvalidRequest for a medium that the model cannot take whole, and as ``render`` and ``encode`` do.
        """

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        """Return how many tokens the prompt of a job of these stages may have at most, with room for a reply."""


@lru_cache(maxsize=16)
def load_renderer(architecture: str, model_dir: Path) -> PromptRenderer:
    """Return a checkpoint's prompt renderer; the process keeps the last 16, and does not read their files again.

    Raise ConfigError for an unknown architecture or a wrong checkpoint; an entry point's import raises its own errors.
    """
    installed = entry_points(group=PROMPTS, name=architecture)
    if not installed:
        raise ConfigError(f"no architecture {architecture!r} installed", field="model.architecture")
    check_checkpoint(model_dir)
    kind: type[PromptRenderer] = next(iter(installed)).load()
    return kind(model_dir)


def architectures_of(model_dir: Path) -> frozenset[str]:
    """Return the installed architectures whose renderers take a checkpoint. Raise ConfigError if it is not readable."""
    check_checkpoint(model_dir)
    config = read_json(model_dir / "config.json")
    return frozenset(entry.name for entry in entry_points(group=PROMPTS) if entry.load().takes(config))


class Renderers:
    """The prompt renderers of all pipelines, each loaded from its checkpoint on this host when first asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loaded: dict[tuple[str, Path], PromptRenderer] = {}

    def are_loaded(self, pipeline: Pipeline) -> bool:
        """Return whether the pipeline's renderer is loaded, so that ``of`` answers at once and not after seconds."""
        return pipeline.model is None or self._key_of(pipeline) in self._loaded

    def of(self, pipeline: Pipeline) -> PromptRenderer | None:
        """Return the pipeline's renderer; None for a pipeline without a model.

        Raise ModelMissing while the checkpoint is missing or wrong; the next call looks again.
        """
        if pipeline.model is None:
            return None
        key = self._key_of(pipeline)
        if key is None:
            raise ModelMissing(f"pipeline {pipeline.name} has no checkpoint here: set OMNI_JOBS_MODELS", field="model")
        try:
            renderer = self._loaded.get(key) or load_renderer(*key)
        except ConfigError as error:
            raise ModelMissing(f"pipeline {pipeline.name} cannot take jobs: {error}", field="model") from error
        self._loaded[key] = renderer
        return renderer

    def _key_of(self, pipeline: Pipeline) -> tuple[str, Path] | None:
        """Return the pipeline's architecture and checkpoint directory; None where it has none here."""
        if pipeline.model is None:
            return None
        path = self._settings.models.get(pipeline.name) or pipeline.model.path
        return None if path is None else (pipeline.model.architecture, Path(path))
