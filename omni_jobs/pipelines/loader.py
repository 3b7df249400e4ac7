"""Pipelines read from ``stage_configs/*.yaml``, each checked whole.

load_pipeline(path)      one file: YAML → types → graph checks; errors name file, line and field of every mistake
load_pipelines(dir)      all files of a directory, by the pipelines' names
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from omni_jobs.errors import ConfigError, NotFound, PluginBroken
from omni_jobs.pipelines.engine_settings import Device
from omni_jobs.pipelines.graph_check import check_graph
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.pipelines.yaml_source import YamlSource, collected, gathered, place_of

logger = logging.getLogger(__name__)

SERVED = "OMNI_JOBS_PIPELINES"  # the setting that names the pipelines to serve


class Pipelines(dict[str, Pipeline]):
    """Loaded pipelines by name, as ``load_pipelines`` makes them of a directory. Some may need a broken plug-in.

    ``served`` returns those that the setting ``pipelines`` names. ``named`` raises NotFound for an unknown name, and
    PluginBroken for a pipeline that cannot run. ``[]`` raises KeyError for an unknown name, and returns any other.
    """

    def __init__(
        self,
        pipelines: Iterable[Pipeline],
        files: Mapping[str, Path] | None = None,
        broken: Mapping[str, PluginBroken] | None = None,
    ) -> None:
        """``files`` maps each pipeline's name to the file it was read from; ``refusal`` needs them.

        ``broken`` has the errors of those pipelines that need a broken plug-in, by name.
        """
        super().__init__({pipeline.name: pipeline for pipeline in pipelines})
        self._files = files or {}
        self._broken = broken or {}
        self._checked: dict[str, tuple[object, ConfigError | None]] = {}  # by name: the file's state, its refusal

    def served(self, names: Sequence[str] | None) -> Pipelines:
        """Return the pipelines that the setting ``pipelines`` names; all of them for None.

        Raises ConfigError for a name that no pipeline has.
        """
        if names is None:
            return self
        for name in names:
            if name not in self:
                known = ", ".join(self) or "none"
                raise ConfigError(f"no stage config has the name {name!r}; there are: {known}", field=SERVED)
        broken = {name: self._broken[name] for name in names if name in self._broken}
        return Pipelines((self[name] for name in names), self._files, broken)

    def named(self, name: str, *, field: str = "model") -> Pipeline:
        """Return the pipeline of this name. Raises NotFound, which names ``field`` and the known pipelines.

        Raises PluginBroken for a pipeline that cannot run because of a broken plug-in.
        """
        if (error := self._broken.get(name)) is not None:  # kept, so each caller gets one of its own to raise
            raise PluginBroken(error.message, field=error.field, file=error.file, line=error.line)
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self) or "none"
            raise NotFound(f"unknown pipeline {name!r}; this server serves: {known}", field=field) from None

    def broken(self, name: str) -> PluginBroken | None:
        """Return the error of the broken plug-in that a pipeline needs, as it was when its file was loaded, or None."""
        return self._broken.get(name)

    def placed(self, error: ConfigError, name: str, stage: str, device: Device) -> ConfigError:
        """Return what a worker's start found wrong with its engine, with file and line if it is a stage config's field.

        A setting that stands under ``device`` is that one. Any other error is returned as it is.
        """
        path, field = self._files.get(name), tuple((error.field or "").split("."))
        if path is None or error.file is not None or field[0] != "engine" or len(field) < 2:
            return error
        own = self[name].stage(stage).engine.get(device)
        if isinstance(own, Mapping) and field[1] in own:
            field = ("engine", device, *field[1:])
        try:
            placed = YamlSource(path).error(("stages", stage, *field), error.message, type(error))
        except ConfigError:  # the file is gone, or is being written
            return error
        placed.stage = stage
        placed.more = tuple(self.placed(each, name, stage, device) for each in error.more)
        return placed

    def refusal(self, name: str) -> ConfigError | None:
        """Return the error with which a process that starts now would refuse this pipeline's file, or None.

        The API's readiness asks for it. The file is read again only after it has changed.
        """
        path = self._files[name]
        try:
            stat = path.stat()
            state: object = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError as error:
            state = error.errno
        checked = self._checked.get(name)
        if checked is None or checked[0] != state:
            checked = self._checked[name] = (state, _refusal(path, name))
        return checked[1]


def _refusal(path: Path, name: str) -> ConfigError | None:
    try:
        now = load_pipeline(path).name
    except ConfigError as error:
        return error
    if now == name:
        return None
    return ConfigError(f"is {now!r} now; this process was started with {name!r}", file=str(path), field="name")


def load_pipelines(directory: Path) -> Pipelines:
    """Return the pipelines of all ``*.yaml`` files of a directory.

    A pipeline that needs a missing or broken plug-in is among them, so that the others live; ``Pipelines.broken`` tells
    why it cannot run. Raises ConfigError for a directory that is missing or cannot be read, the first wrong file, and a
    pipeline name that two files have.
    """
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".yaml")
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError("no such directory", file=str(directory)) from None
    except OSError as error:
        raise ConfigError(f"the directory cannot be read: {error.strerror}", file=str(directory)) from None
    files: dict[str, Path] = {}
    pipelines = []
    broken: dict[str, PluginBroken] = {}
    for path in paths:
        pipeline, found = _read_pipeline(path)
        unusable = next((error for error in found if isinstance(error, PluginBroken)), None)
        if found and unusable is None:
            raise gathered(found)
        if unusable is not None:
            logger.error("pipeline %s cannot run: %s", pipeline.name, unusable)
            broken[pipeline.name] = unusable
        if pipeline.name in files:
            raise ConfigError(f"{files[pipeline.name]} has this name already", file=str(path), field="name")
        files[pipeline.name] = path
        pipelines.append(pipeline)
    return Pipelines(pipelines, files, broken)


def load_pipeline(path: Path) -> Pipeline:
    """Return the pipeline of one stage config, checked whole.

    Raises ConfigError with file, and line and field if known; its ``more`` has the other mistakes.
    """
    pipeline, found = _read_pipeline(path)
    if found:
        raise gathered(found)
    return pipeline


def _read_pipeline(path: Path) -> tuple[Pipeline, list[ConfigError]]:
    """Return the pipeline of one stage config, and the mistakes in its graph.

    Raises ConfigError for a file that gives no pipeline, with all its mistakes.
    """
    source, data, found = _read(path)
    try:
        pipeline = Pipeline.model_validate(data)
    except ValidationError as error:
        with collected(found), source.located(()):
            raise
        rest = _without_mistakes(data, error)
        raise gathered(found + ([] if rest is None else check_graph(rest, source))) from None
    if found:
        raise gathered(found + check_graph(pipeline, source))
    return pipeline, check_graph(pipeline, source)


def _without_mistakes(data: Any, error: ValidationError) -> Pipeline | None:
    """Return the pipeline without the fields that are wrong, so that its graph can be checked; None if they are needed.

    ``data`` loses these fields.
    """
    for place in sorted({place_of(complaint) for complaint in error.errors()}, key=len, reverse=True):
        inner = data
        for part in place[:-1]:
            inner = inner[part] if isinstance(inner, dict) and part in inner else None
        if not place or not isinstance(inner, dict) or place[-1] not in inner:
            return None
        del inner[place[-1]]
    try:
        return Pipeline.model_validate(data)
    except ValidationError:
        return None


def _read(path: Path) -> tuple[YamlSource, Any, list[ConfigError]]:
    """Return a stage config, its data with each stage's name, and mistakes in these names. Raises ConfigError."""
    source = YamlSource(path)
    data = source.data
    found: list[ConfigError] = []
    if isinstance(data, dict) and isinstance(data.get("stages"), dict):
        for name, stage in data["stages"].items():
            if isinstance(stage, dict):
                if "name" in stage:
                    found.append(source.error(("stages", name, "name"), "unknown key (a stage's name is its key)"))
                stage["name"] = name
    return source, data, found
