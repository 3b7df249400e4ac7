"""The checkpoints that ``omni-jobs up`` serves: which pipeline each is for, and tiny ones built for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from omni_jobs.cli.terminal import say

if TYPE_CHECKING:
    from omni_jobs.pipelines.stage_config import Pipeline
    from omni_jobs.settings import Settings


def chosen_pipelines(
    settings: Settings, pipelines: Sequence[str], models: Sequence[str], tiny: Sequence[str] = ()
) -> tuple[list[str], dict[str, Path]]:
    """Return the names of the pipelines to start, and the checkpoint directories that ``models`` (--model) names.

    ``tiny`` (--tiny) names pipelines to start as well. Raises NotFound for an unknown pipeline, ConfigError, and
    BadParameter for a checkpoint whose pipeline cannot be told.
    """
    from omni_jobs.pipelines.loader import load_pipelines

    known = load_pipelines(settings.resolved_stage_configs)
    if not pipelines and settings.pipelines is not None:
        pipelines = list(known.served(settings.pipelines))
    pipelines = [name if name in known else known.label(known.named(name, field="pipeline")) for name in pipelines]
    whole = [known[name] for name in pipelines or known if known.broken(name) is None]
    families = _families(whole, whole=bool(pipelines))
    checkpoints: dict[str, Path] = {}
    for value in models:
        name, separator, path = value.partition("=")
        if not separator or name.partition(".")[0] not in known:
            name, path = _place_of(Path(value).expanduser(), families), value
        checkpoints[name] = Path(path).expanduser().resolve()
    built = [known.named(name, field="pipeline").name for name in tiny]
    given = {name.partition(".")[0] for name in (*checkpoints, *settings.models, *built)}
    chosen = [*pipelines, *built] if pipelines else [name for name in known if name in given]
    return list(dict.fromkeys(chosen)) or ["echo"], checkpoints


def _families(pipelines: Sequence[Pipeline], *, whole: bool) -> dict[str, str]:
    """Return the places of checkpoints, each with its family: PIPELINE for a model that its stages share.

    ``whole``: also PIPELINE.STAGE for a stage that needs a checkpoint of its own.
    """
    places = {pipeline.name: pipeline.model.family for pipeline in pipelines if pipeline.model is not None}
    for pipeline in pipelines if whole else ():
        for stage in pipeline.stages.values():
            own = stage.model is not None and stage.model != pipeline.model
            if own and stage.model is not None and stage.family is not None and stage.family.checkpoint is None:
                places[f"{pipeline.name}.{stage.name}"] = stage.model.family
    return places


def _place_of(checkpoint: Path, families: Mapping[str, str]) -> str:
    """Return the only place of a checkpoint, or the only one whose family takes this one.

    ``families`` maps places to families. Raises BadParameter and ConfigError.
    """
    from omni_jobs.errors import ConfigError
    from omni_jobs.prompts.renderers import families_of, kind_of

    fitting = list(families)
    if len(fitting) > 1:
        if not checkpoint.is_dir():
            raise ConfigError(f"no such checkpoint directory: {checkpoint}", field="models")
        of_checkpoint = families_of(checkpoint)
        fitting = [name for name, family in families.items() if family in of_checkpoint]
        if not fitting:
            raise typer.BadParameter(
                f"name its pipeline: PIPELINE={checkpoint}. Its {kind_of(checkpoint)}, which no pipeline here takes",
                param_hint="--model",
            )
    if len(fitting) != 1:
        raise typer.BadParameter(f"name its pipeline: PIPELINE={checkpoint}", param_hint="--model")
    return fitting[0]


def build_tiny(settings: Settings, pipelines: Sequence[str]) -> dict[str, Path]:
    """Build tiny checkpoints of pipelines (--tiny) in the data directory, and say that they are noise.

    Return their directories by place, as the setting ``models`` has them. Raises ConfigError for a pipeline that needs
    none, a family that has none or one that cannot be built, and StackError for a data directory open to others.
    """
    from omni_jobs.errors import ConfigError
    from omni_jobs.pipelines.loader import load_pipelines
    from omni_jobs.stack.data_directory import make_private
    from omni_jobs.stack.tiny_checkpoint import tiny_checkpoint

    if not pipelines:
        return {}
    known = load_pipelines(settings.resolved_stage_configs)
    built: dict[str, Path] = {}
    for name in pipelines:
        places = _families([known[name]], whole=True)
        if not places:
            raise ConfigError(f"{name} needs no checkpoint: leave --tiny out", field="models")
        for place, family in places.items():
            began = time.monotonic()
            data = settings.data_dir.expanduser().resolve()
            make_private(data)
            built[place] = tiny_checkpoint(family, data / "tiny")
            say(
                f"{place}: a tiny checkpoint with random weights, ready after {time.monotonic() - began:.1f} s in "
                f"{built[place]}. What it makes is noise, though every part that makes it is real."
            )
    return built
