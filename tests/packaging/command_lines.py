"""Command lines of ``omni-jobs`` in units and manifests, as its own parser reads them."""

from collections.abc import Mapping, Sequence

import typer

from omni_jobs.cli import app
from omni_jobs.settings import Settings

OF_OTHERS = frozenset(
    {
        "AWS_CA_BUNDLE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "CUDA_CACHE_PATH",
        "CUDA_VISIBLE_DEVICES",
        "DO_NOT_TRACK",
        "HF_HUB_OFFLINE",
        "HOME",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "VLLM_NO_USAGE_STATS",
        "XDG_CACHE_HOME",
    }
)
"""The variables of other programs that deployments set."""


def parsed(words: Sequence[str]) -> tuple[list[str], Mapping[str, object]]:
    """Return the names of the command, and its parameters. A flag or a command that is none is an error of click."""
    command = typer.main.get_command(app)
    names, rest, parameters = [], list(words), {}
    context = None
    while True:
        context = command.make_context(names[-1] if names else "omni-jobs", rest, parent=context)
        parameters = context.params
        if not hasattr(command, "resolve_command"):
            return names, parameters
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        names.append(str(name))


def unknown_variables(environment: Mapping[str, str]) -> set[str]:
    """Return the names of variables that are neither a setting, nor a setting's file, nor known to another program."""
    known = {f"OMNI_JOBS_{name.upper()}" for name in (*Settings.model_fields, "url")}  # the last is the client's
    files = {f"{name}_FILE" for name in known}
    return set(environment) - known - files - OF_OTHERS
