"""The renderers that turn a job's messages into a prompt and count its tokens: one per family."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from typing_extensions import get_protocol_members

from omni_jobs.errors import ConfigError, ModelMissing, OmniJobsError, PluginBroken
from omni_jobs.pipelines.declarations import FAMILIES, family
from omni_jobs.pipelines.plugins import named_object, names
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.prompts.checkpoint_files import check_checkpoint, read_json

if TYPE_CHECKING:
    from omni_jobs.media import MediaInfo
    from omni_jobs.pipelines.parameters import StageParameters
    from omni_jobs.settings import Settings

logger = logging.getLogger(__name__)

HANGS_S = 60.0
"""A renderer's call that takes longer hangs."""

_under_way: dict[int, tuple[str, float]] = {}  # thread → whose renderer it calls, and since when

_INDEX = "model_index.json"  # of a checkpoint in the layout of Diffusers


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
        """Return whether a checkpoint is of this family, by its ``config.json``, or Diffusers' ``model_index.json``."""

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


class TokenlessRenderer:
    """A base of ``PromptRenderer``: its prompt is a sound, a picture or a text of any length.

    A subclass has ``check``, which says what of a request the model needs.
    """

    max_model_len = 1
    hidden_size = 0  # it takes no embeddings
    longest_audio_s = None

    def __init__(self, model_dir: Path) -> None:
        """Do nothing: no file of the checkpoint is needed to check a request."""

    @classmethod
    def takes(cls, config: Mapping[str, Any]) -> bool:
        return False  # its checkpoints have no config.json

    def render(self, request: Mapping[str, Any]) -> str:
        """Return nothing: the prompt has no text, or none that goes to the engine as it is."""
        return ""

    def encode(self, request: Mapping[str, Any]) -> None:
        """Return None: there are no tokens."""

    def count_tokens(self, request: Mapping[str, Any], media: Sequence[MediaInfo]) -> int:
        """Return 0. A subclass may check the media here."""
        return 0

    def prompt_limit(self, stages: Sequence[StageConfig]) -> int:
        return self.max_model_len


@runtime_checkable
class ParametersRenderer(Protocol):
    """A prompt renderer whose checkpoint decides what a job may set for the stage that reads the request."""

    def check_parameters(self, parameters: StageParameters) -> None:
        """Raise InvalidRequest, whose field is the parameter's name, for what the checkpoint cannot follow."""


@runtime_checkable
class ToolsRenderer(Protocol):
    """A prompt renderer that writes a request's ``tools``, calls and answers of tools, if its checkpoint can.

    A request has ``tools`` in OpenAI's form, and messages may have ``tool_calls`` and ``tool_call_id``.
    """

    takes_tools: bool  # whether the checkpoint's template knows tools


@lru_cache(maxsize=16)
def load_renderer(family_name: str, model_dir: Path) -> PromptRenderer:
    """Return a checkpoint's prompt renderer; the process keeps the last 16, and does not read their files again.

    Raise ConfigError for an unknown family, one without a renderer or a wrong checkpoint, and PluginBroken.
    """
    kind = _renderer_class(family_name)
    if kind is None:
        raise ConfigError(f"family {family_name} has no prompt renderer", field="model.family")
    check_checkpoint(model_dir)
    renderer = kind(model_dir)
    if missing := [name for name in sorted(get_protocol_members(PromptRenderer)) if not hasattr(renderer, name)]:
        raise PluginBroken(f"{family(family_name).prompts} is no prompt renderer: it has no {', no '.join(missing)}")
    return renderer


@contextmanager
def renderer_errors(owner: str, part: str = "prompt renderer") -> Iterator[None]:
    """Raise PluginBroken in place of what a renderer raises that is no error of ours, and while one of its calls hangs.

    A renderer may be another package's. Its SystemExit would end this process, and each call that hangs takes a thread.
    ``part`` of the pipeline ``owner`` is called in another way.
    """
    now, thread = time.monotonic(), threading.get_ident()
    if any(each == owner and now - begun > HANGS_S for each, begun in list(_under_way.values())):
        raise PluginBroken(f"the {part} of {owner} hangs: a call has not ended for {HANGS_S:g} s", field="model.family")
    _under_way[thread] = owner, now
    try:
        yield
    except (OmniJobsError, KeyboardInterrupt):
        raise
    except BaseException as error:
        logger.exception("the %s of %s failed", part, owner)
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise PluginBroken(f"the {part} of {owner} failed: {reason}", field="model.family") from error
    finally:
        _under_way.pop(thread, None)


def families_of(model_dir: Path) -> frozenset[str]:
    """Return the installed families that a checkpoint is of.

    One in the layout of Diffusers says its class in model_index.json, and families list the classes that they know. Of
    any other the families' renderers read config.json. Raise ConfigError for a file that is missing or wrong.
    """
    check_checkpoint(model_dir)
    index = read_json(model_dir / _INDEX, {})
    if index:
        said = str(index.get("_class_name"))
        return frozenset(name for name in names(FAMILIES) if said in _diffusers_classes(name))
    config = read_json(model_dir / "config.json")
    return frozenset(name for name in names(FAMILIES) if _takes(name, config))


def kind_of(model_dir: Path) -> str:
    """Return what a checkpoint's own files call it, for messages. Raise ConfigError for a file that is wrong."""
    index, config = (read_json(model_dir / name, {}) for name in (_INDEX, "config.json"))
    if "_class_name" in index:
        return f"{_INDEX} says {index['_class_name']!r:.100}"
    return f"config.json says {config.get('architectures', config.get('model_type'))!r:.100}"


def checkpoint_of(pipeline: Pipeline, stage: StageConfig, models: Mapping[str, Path]) -> Path | None:
    """Return the directory of a stage's checkpoint on this host; None if there is none.

    ``models`` has directories by PIPELINE.STAGE, and by PIPELINE for the stages that share the pipeline's model; one
    for NAME@VERSION goes before one for all versions. Without any it is the stage config's, or that of a package that
    the family names.
    """
    if stage.model is None:
        return None
    is_shared = stage.model == pipeline.model
    keys = [
        key
        for name in (pipeline.reference, pipeline.name)
        for key in (f"{name}.{stage.name}", *([name] if is_shared else []))
    ]
    given = next((models[key] for key in keys if key in models), stage.model.path)
    if given is not None:
        return Path(given)
    packaged = stage.family.checkpoint if stage.family is not None else None
    return None if packaged is None else _packaged(packaged)


def check_renderers(pipeline: Pipeline) -> None:
    """Import the prompt renderers of a pipeline's families. Raise PluginBroken for one that cannot be imported."""
    for stage in pipeline.stages.values():
        if stage.model is not None:
            _renderer_class(stage.model.family)


def _renderer_class(family_name: str) -> type[PromptRenderer] | None:
    path = family(family_name).prompts
    return None if path is None else named_object(path, type)


def _diffusers_classes(family_name: str) -> frozenset[str]:
    try:
        return family(family_name).diffusers_classes
    except PluginBroken:
        return frozenset()


def _takes(family_name: str, config: Mapping[str, Any]) -> bool:
    try:
        kind = _renderer_class(family_name)
        with renderer_errors(family_name):
            return kind is not None and kind.takes(config)
    except PluginBroken:
        return False


def _packaged(path: str) -> Path | None:
    """Return a directory inside an installed package, "package:directory"; None if the package is not installed."""
    package, _, directory = path.partition(":")
    found = find_spec(package)
    places = found.submodule_search_locations if found is not None else None
    return Path(places[0], directory) if places else None


class Renderers:
    """The prompt renderers of all pipelines, each loaded from its checkpoint on this host when first asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loaded: dict[tuple[str, Path], PromptRenderer] = {}

    def are_loaded(self, pipeline: Pipeline) -> bool:
        """Return whether the pipeline's renderer is loaded, so that ``of`` answers at once and not after seconds."""
        try:
            return pipeline.reader is None or self._key_of(pipeline) in self._loaded
        except ConfigError:
            return False  # ``of`` raises it

    def of(self, pipeline: Pipeline) -> PromptRenderer | None:
        """Return the renderer of the stage that reads the pipeline's requests; None where no model does.

        Raise ModelMissing while the checkpoint is missing or wrong; the next call looks again. Raise PluginBroken for
        a renderer that cannot be imported.
        """
        try:
            stage = pipeline.reader
            if stage is None or stage.family is None or stage.family.prompts is None:
                return None
            key = self._key_of(pipeline)
            if key is None:
                raise ModelMissing(
                    f"pipeline {pipeline.name} has no checkpoint here: set OMNI_JOBS_MODELS", field="model"
                )
            with renderer_errors(pipeline.name):
                renderer = self._loaded.get(key) or load_renderer(*key)
        except PluginBroken as error:
            raise PluginBroken(f"pipeline {pipeline.name} cannot take jobs: {error}", field="model.family") from error
        except ConfigError as error:
            raise ModelMissing(f"pipeline {pipeline.name} cannot take jobs: {error}", field="model") from error
        self._loaded[key] = renderer
        return renderer

    def _key_of(self, pipeline: Pipeline) -> tuple[str, Path] | None:
        """Return family and checkpoint directory of the stage that reads the requests; None where it has none here."""
        stage = pipeline.reader
        path = None if stage is None else checkpoint_of(pipeline, stage, self._settings.models)
        return None if stage is None or stage.model is None or path is None else (stage.model.family, path)
