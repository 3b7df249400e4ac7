"""Pipelines read from ``stage_configs/*.yaml``, each checked whole.

load_pipeline(path)      one file: YAML → types → graph checks; errors name file, line and field of every mistake
load_pipelines(dir)      all files of a directory, several versions of a pipeline among them
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from omni_jobs.errors import ConfigError, NotFound, OmniJobsError, PluginBroken
from omni_jobs.identity import PipelineId
from omni_jobs.pipelines.engine_settings import Device
from omni_jobs.pipelines.graph_check import check_graph
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.pipelines.yaml_source import YamlSource, collected, gathered, place_of

logger = logging.getLogger(__name__)

SERVED = "OMNI_JOBS_PIPELINES"  # the setting that names the pipelines to serve


class Pipelines(dict[str, Pipeline]):
    """Loaded pipelines by label, as ``load_pipelines`` makes them of a directory. Some may need a broken plug-in.

    The label of the newest version of a pipeline is its name, that of another one is NAME@VERSION. A reference is what
    people write: NAME@VERSION, or NAME for the newest version that is here and takes new jobs; where none takes any,
    for the newest one. ``[]`` takes labels alone.
    """

    def __init__(
        self,
        pipelines: Iterable[Pipeline],
        files: Mapping[str, Path] | None = None,
        broken: Mapping[str, PluginBroken] | None = None,
    ) -> None:
        """``files`` maps each pipeline's NAME@VERSION to the file it was read from; ``refusal`` needs them.

        ``broken`` has the errors of those pipelines that need a broken plug-in, by NAME@VERSION.
        """
        given = tuple(pipelines)
        self._newest_first = sorted(given, key=lambda pipeline: version_order(pipeline.version), reverse=True)
        self._newest = {pipeline.name: pipeline for pipeline in reversed(self._newest_first)}
        super().__init__({self.label(pipeline): pipeline for pipeline in given})
        self._files = files or {}
        self._broken = broken or {}
        self._checked: dict[str, tuple[object, ConfigError | None]] = {}  # by reference: the file's state, its refusal
        self.refuse_new_jobs({})

    def label(self, pipeline: Pipeline) -> str:
        """Return what lists call a pipeline: by its name if it is the newest of that name here, else NAME@VERSION."""
        return pipeline.name if self._newest[pipeline.name] is pipeline else pipeline.reference

    @property
    def queue_aliases(self) -> dict[str, str]:
        """The queues of the newest versions, NAME@VERSION.STAGE, by their aliases, NAME.STAGE."""
        newest = self._newest.items()
        return {f"{name}.{stage}": pipeline.queue(stage) for name, pipeline in newest for stage in pipeline.stages}

    def refuse_new_jobs(self, refused: Mapping[str, Callable[[], OmniJobsError]]) -> None:
        """Take no new jobs from now on for these versions, by NAME@VERSION, but raise the error that is made of each.

        All others take them. Any thread may look meanwhile.
        """
        by_reference = {pipeline.reference: pipeline for pipeline in self._newest_first}
        for pipeline in sorted(self._newest_first, key=lambda pipeline: pipeline.reference in refused):
            by_reference.setdefault(pipeline.name, pipeline)
        self._by_reference, self._refused = by_reference, refused

    def takes_jobs(self, pipeline: Pipeline) -> bool:
        """Return whether a pipeline takes new jobs."""
        return pipeline.reference not in self._refused

    def check_takes_jobs(self, pipeline: Pipeline) -> None:
        """Raise the error with which new jobs of a pipeline are refused, if they are."""
        if (refusal := self._refused.get(pipeline.reference)) is not None:
            raise refusal()

    def served(self, references: Sequence[str] | None) -> Pipelines:
        """Return the pipelines that the setting ``pipelines`` names: all versions of a NAME. All of them for None.

        Raises ConfigError for a reference to none.
        """
        if references is None:
            return self
        for reference in references:
            if self.find(reference) is None:
                known = ", ".join(self) or "none"
                raise ConfigError(f"no stage config has the name {reference!r}; there are: {known}", field=SERVED)
        named = [[self.find(each)] if "@" in each else self.versions(each) for each in references]
        chosen = [each for versions in named for each in versions if each is not None]
        return Pipelines(chosen, self._files, self._broken)

    def find(self, reference: str) -> Pipeline | None:
        """Return the pipeline of a reference, or None."""
        return self._by_reference.get(reference)

    def version_or_newest(self, name: str, version: str) -> Pipeline | None:
        """Return this version of a pipeline, or else the newest that is here; None: there is none of this name."""
        return self.find(f"{name}@{version}") or self.find(name)

    def versions(self, name: str) -> list[Pipeline]:
        """Return all versions of the pipeline of this name, the newest first."""
        return [each for each in self._newest_first if each.name == name]

    def of(self, identity: PipelineId) -> Pipeline | None:
        """Return the very version of a pipeline that an identity means, or None: its file is not here.

        A version that needs a broken plug-in has no identity, so it is not found.
        """
        versions = (each for each in self.values() if each.name == identity.name and each.reference not in self._broken)
        return next((each for each in versions if each.digest == identity.digest), None)

    def named(self, reference: str, *, field: str = "model") -> Pipeline:
        """Return the pipeline of a reference. Raises NotFound, which names ``field`` and the known pipelines.

        Raises PluginBroken for a pipeline that cannot run because of a broken plug-in.
        """
        pipeline = self.find(reference)
        if pipeline is None:
            known = ", ".join(self) or "none"
            raise NotFound(f"unknown pipeline {reference!r}; this server serves: {known}", field=field)
        error = self._broken.get(pipeline.reference)
        if error is not None:  # it is kept, so each caller gets one of its own to raise
            raise PluginBroken(error.message, field=error.field, file=error.file, line=error.line)
        return pipeline

    def broken(self, reference: str) -> PluginBroken | None:
        """Return the error of the broken plug-in that a pipeline needs, as it was when its file was loaded, or None."""
        pipeline = self.find(reference)
        return None if pipeline is None else self._broken.get(pipeline.reference)

    def placed(self, error: ConfigError, pipeline: Pipeline, stage: str, device: Device) -> ConfigError:
        """Return what a worker's start found wrong with its engine, with file and line if it is a stage config's field.

        A setting that stands under ``device`` is that one. Any other error is returned as it is.
        """
        path, field = self._files.get(pipeline.reference), tuple((error.field or "").split("."))
        if path is None or error.file is not None or field[0] != "engine" or len(field) < 2:
            return error
        own = pipeline.stage(stage).engine.get(device)
        if isinstance(own, Mapping) and field[1] in own:
            field = ("engine", device, *field[1:])
        try:
            placed = YamlSource(path).error(("stages", stage, *field), error.message, type(error))
        except ConfigError:  # the file is gone, or is being written
            return error
        placed.stage = stage
        placed.more = tuple(self.placed(each, pipeline, stage, device) for each in error.more)
        return placed

    def refusal(self, pipeline: Pipeline) -> ConfigError | None:
        """Return the error with which a process that starts now would refuse this pipeline's file, or None.

        The API's readiness asks for it. The file is read again only after it has changed.
        """
        path = self._files[pipeline.reference]
        try:
            stat = path.stat()
            state: object = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except OSError as error:
            state = error.errno
        checked = self._checked.get(pipeline.reference)
        if checked is None or checked[0] != state:
            checked = self._checked[pipeline.reference] = (state, _refusal(path, pipeline.name))
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
    version of a pipeline that two files have.
    """
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".yaml")
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError("no such directory", file=str(directory)) from None
    except OSError as error:
        raise ConfigError(f"the directory cannot be read: {error.strerror}", file=str(directory)) from None
    read: dict[str, tuple[Pipeline, Path, PluginBroken | None]] = {}  # by reference
    for path in paths:
        pipeline, found = _read_pipeline(path)
        unusable = next((error for error in found if isinstance(error, PluginBroken)), None)
        if found and unusable is None:
            raise gathered(found)
        if pipeline.reference in read:
            raise ConfigError(same_version(pipeline, read[pipeline.reference][1]), file=str(path), field="version")
        if unusable is not None:
            logger.error("pipeline %s cannot run: %s", pipeline.reference, unusable)
        read[pipeline.reference] = pipeline, path, unusable
    return Pipelines(
        (pipeline for pipeline, _, _ in read.values()),
        {reference: path for reference, (_, path, _) in read.items()},
        {reference: unusable for reference, (_, _, unusable) in read.items() if unusable is not None},
    )


def same_version(pipeline: Pipeline, other: Path) -> str:
    """Return what is wrong where another file has the version of a pipeline already."""
    return f"{other} is version {pipeline.version} of {pipeline.name} already: raise the version of one"


def version_order(version: str) -> tuple[object, ...]:
    """Return a key by which versions are ordered: 2 before 10, and 2.0-rc1 before 2.0 before 2.0.1."""
    parts = [(2, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[A-Za-z]+", version)]
    return (*parts, (1, 0, ""), version)  # the end goes between a word and a number


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
