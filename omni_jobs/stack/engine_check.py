"""``check_engines``: the ``engine`` of stages, checked by the engines' own types where these are installed.

An engine's import takes seconds and much memory, so it happens in a process of its own, once for all stage configs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.declarations import RunnerDeclaration, runner
from omni_jobs.pipelines.yaml_source import FieldPath, YamlSource
from omni_jobs.stack.environments import plain_environment

CHECK_LIMIT_S = 180.0
"""How long a check may take; vLLM's import takes some ten seconds, and a minute on a busy machine."""

_ANSWER = TypeAdapter(list[list[tuple[tuple[str | int, ...], str]]])


@dataclass(frozen=True, slots=True)
class _Engine:
    """The ``engine`` of a stage, as its file has it."""

    file: Path
    source: YamlSource
    stage: str
    settings: Mapping[str, Any]


class _NotChecked(Exception):
    """The engines cannot be checked here; the message says why."""


def check_engines(files: Iterable[Path], on_unchecked: Callable[[str], None]) -> dict[Path, list[ConfigError]]:
    """Return the mistakes in the ``engine`` of stages that the engines' own types find, with file, line and field.

    What the other checks of a stage config find is not among them; a file that they cannot read is left out.
    ``on_unchecked`` is called with a line for each file with settings at which nobody could look, because the engine
    is not installed here or does not start.
    """
    found: dict[Path, list[ConfigError]] = {}
    by_check: dict[str, tuple[RunnerDeclaration, list[_Engine]]] = {}
    for file in files:
        for declared, engine in _engines(file):
            if declared.engine_check is not None and engine.settings:
                by_check.setdefault(declared.engine_check, (declared, []))[1].append(engine)
    for module, (declared, engines) in by_check.items():
        try:
            answer = _ask(module, declared, engines)
        except _NotChecked as error:
            for file in dict.fromkeys(engine.file for engine in engines):
                fields = ", ".join(f"stages.{each.stage}.engine" for each in engines if each.file == file)
                on_unchecked(f"{file}: {fields}: not checked by the engine's own types: {error}")
            continue
        for engine, mistakes in zip(engines, answer, strict=True):
            at: FieldPath = ("stages", engine.stage, "engine")
            errors = (engine.source.error((*at, *within), message) for within, message in mistakes)
            found.setdefault(engine.file, []).extend(errors)
    return found


def _engines(file: Path) -> Iterator[tuple[RunnerDeclaration, _Engine]]:
    """Yield the engines of a stage config, which may have other mistakes."""
    try:
        source = YamlSource(file)
    except ConfigError:
        return
    stages = source.data.get("stages") if isinstance(source.data, dict) else None
    for name, stage in stages.items() if isinstance(stages, dict) else ():
        kind, settings = (stage.get("kind"), stage.get("engine")) if isinstance(stage, dict) else (None, None)
        if isinstance(kind, str) and isinstance(settings, dict):
            try:
                yield runner(kind), _Engine(file, source, name, settings)
            except ConfigError:
                continue


def _ask(
    module: str, declared: RunnerDeclaration, engines: list[_Engine]
) -> list[list[tuple[tuple[str | int, ...], str]]]:
    """Return what the module finds in each engine's settings. Raises _NotChecked."""
    for package, install in declared.packages.items():
        if find_spec(package) is None:
            raise _NotChecked(f"the package {package} is not installed here: {install}")
    asked = json.dumps([engine.settings for engine in engines], default=str)  # a date, which other checks refuse
    command = [sys.executable, "-m", module]
    environment = plain_environment(os.environ)
    try:
        done = subprocess.run(
            command, input=asked, env=environment, capture_output=True, text=True, timeout=CHECK_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise _NotChecked(f"{module} did not answer within {CHECK_LIMIT_S:g} s") from None
    try:
        answer = _ANSWER.validate_json(done.stdout)
    except ValidationError:
        answer = []
    if done.returncode != 0 or len(answer) != len(engines):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise _NotChecked(f"{module} ended with exit status {done.returncode}: {last}")
    return answer
