"""Tiny checkpoints with random weights: each family builds its own, in a process of its own."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from omni_jobs.errors import ConfigError
from omni_jobs.pipelines.declarations import FAMILIES, family
from omni_jobs.pipelines.plugins import names
from omni_jobs.stack.environments import plain_environment


def tiny_checkpoint(family_name: str, directory: Path) -> Path:
    """Return the directory of a family's tiny checkpoint below ``directory``, built once per version of its builder.

    Raises ConfigError for an unknown family, one without a tiny checkpoint, a builder that is not installed and one
    that fails; and PluginBroken.
    """
    module = family(family_name).tiny_checkpoint
    if module is None:
        known = ", ".join(name for name in names(FAMILIES) if _has_one(name)) or "none"
        raise ConfigError(f"family {family_name} has no tiny checkpoint; these have: {known}", field="models")
    made = directory / f"{family_name}-{source_digest(module)}"
    if not made.is_dir():  # a checkpoint appears whole or not at all
        run_builder(module, made)
        for outdated in directory.glob(f"{family_name}-*"):
            if outdated != made:
                shutil.rmtree(outdated, ignore_errors=True)
    return made


def _has_one(family_name: str) -> bool:
    try:
        return family(family_name).tiny_checkpoint is not None
    except ConfigError:
        return False


def run_builder(module: str, *arguments: Path) -> None:
    """Run a module that makes a checkpoint directory, in a process of its own. Raises ConfigError if it fails."""
    command: list[str | Path] = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=plain_environment(os.environ), capture_output=True, text=True)
    if lacking := re.search(r"ModuleNotFoundError: No module named '([\w.]+)'\n\Z", done.stderr):
        raise ConfigError(f"{module} needs {lacking[1]}, which is not installed here: run scripts/setup")
    if done.returncode != 0:
        raise ConfigError(f"{module} could not make the checkpoint:\n{done.stderr[-2000:]}")


def source_digest(module: str) -> str:
    """Return a digest of a module's source, which is not imported. Raises ConfigError if it is not installed."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # of a package above it
        found = None
    if found is None or found.origin is None:
        raise ConfigError(f"the module {module} is not installed here: run scripts/setup")
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()[:12]
