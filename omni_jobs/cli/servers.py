"""Commands that serve: the whole stack, or one of its processes; and what prepares the database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from omni_jobs.cli.options import DataDirOption, JsonOption, PipelineOption

if TYPE_CHECKING:
    from omni_jobs.settings import Settings

__all__ = ["api", "migrate", "prune", "rescuer", "up", "worker"]


def up(
    pipeline: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--pipeline", "-p", help="Serve this pipeline; may be repeated.", show_default=False),
    ] = None,
    model: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--model", metavar="[PIPELINE=]PATH", help="A checkpoint directory.", show_default=False),
    ] = None,
    data_dir: DataDirOption = None,
    port: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--port", min=0, max=65535, help="The API's port. Default: 8000, or a free one.", show_default=False
        ),
    ] = None,
) -> None:
    """Run the whole system on this machine until Ctrl-C: broker, API, rescuer and a worker per stage.

    Without --pipeline: those of OMNI_JOBS_PIPELINES; unset, those whose checkpoint is given with --model, or else
    echo. Which pipeline a checkpoint is for is told from its config.json, where PIPELINE= does not say so.

    \b
    Examples:
      omni-jobs up --pipeline echo
      omni-jobs up --model ~/models/Qwen2.5-Omni-3B
      omni-jobs up --model ~/models/SmolLM2-135M-Instruct --model qwen2_5_omni=~/models/Qwen2.5-Omni-3B
      omni-jobs up --pipeline echo --pipeline qwen2_5_omni --model ~/models/Qwen2.5-Omni-3B --port 9000
    """
    import os

    from omni_jobs.cli.console import show_start
    from omni_jobs.cli.interrupts import raised_signals
    from omni_jobs.settings import read_settings
    from omni_jobs.stack.child import UMASK
    from omni_jobs.stack.embedded import EmbeddedStack

    os.umask(UMASK)
    settings = read_settings()
    chosen, models = _chosen(settings, pipeline or [], model or [])
    given = {"models": settings.models | models, "data_dir": data_dir or settings.data_dir}
    settings = settings.model_copy(update=given)
    stack = EmbeddedStack(settings, pipelines=chosen, port=port if port is not None else _usual_port(settings))
    with raised_signals():
        try:
            show_start(stack)
            typer.echo(f"omni-jobs is up at {stack.url}  (pipelines: {', '.join(chosen)}; logs: {stack.log_dir})")
            typer.echo("Press Ctrl-C to stop.")
            try:
                stack.wait()
            except KeyboardInterrupt:
                typer.echo("\nstopping …", err=True)
        finally:
            stack.stop()


def _served_for_one_user() -> Settings:
    """The settings of a process that is not the stack's; what it writes, and where, is for its user alone.

    Raises StackError when the data directory is open to others and not ours to close.
    """
    import os

    from omni_jobs.errors import StackError
    from omni_jobs.settings import settings
    from omni_jobs.stack.child import UMASK
    from omni_jobs.stack.data_directory import close_to_others

    os.umask(UMASK)
    found = settings()
    if found.database_url is None or found.storage_url is None:
        try:
            close_to_others(found.data_dir.expanduser().resolve())
        except OSError as error:
            raise StackError(f"the data directory cannot be used: {error}") from error
    return found


def _chosen(settings: Settings, pipelines: list[str], models: list[str]) -> tuple[list[str], dict[str, Path]]:
    """The pipelines to start, and their checkpoints as far as given."""
    from omni_jobs.pipelines.loader import load_pipelines

    known = load_pipelines(settings.resolved_stage_configs)
    if not pipelines and settings.pipelines is not None:
        pipelines = list(known.served(settings.pipelines))
    architectures = {
        name: pipeline.model.architecture
        for name in pipelines or known
        if (pipeline := known.named(name, field="pipeline")).model is not None
    }
    found: dict[str, Path] = {}
    for value in models:
        name, separator, path = value.partition("=")
        if not separator or name not in known:
            name, path = _pipeline_of(Path(value).expanduser(), architectures), value
        found[name] = Path(path).expanduser().resolve()
    chosen = pipelines or [name for name in architectures if name in found or name in settings.models]
    return chosen or ["echo"], found


def _pipeline_of(checkpoint: Path, architectures: Mapping[str, str]) -> str:
    """The one pipeline that runs this checkpoint: the only one there is, or else the only one of its architecture."""
    from omni_jobs.errors import ConfigError
    from omni_jobs.prompts import architectures_of

    fitting = list(architectures)
    if len(fitting) > 1:
        if not checkpoint.is_dir():
            raise ConfigError(f"no such checkpoint directory: {checkpoint}", field="models")
        of_checkpoint = architectures_of(checkpoint)
        fitting = [name for name, architecture in architectures.items() if architecture in of_checkpoint]
    if len(fitting) != 1:
        raise typer.BadParameter(f"say for which pipeline: PIPELINE={checkpoint}", param_hint="--model")
    return fitting[0]


def _usual_port(settings: Settings) -> int:
    """The port people expect, when it is free."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.api_host, settings.api_port))
        except OSError:
            return 0
    return settings.api_port


def api(
    host: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--host", help="Address to listen on.", show_default=False),
    ] = None,
    port: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--port", min=0, max=65535, help="Port to listen on.", show_default=False),
    ] = None,
    fd: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--fd", help="Serve on this listening socket, opened by a supervisor.", show_default=False),
    ] = None,
) -> None:
    """Run one API server. Settings come from OMNI_JOBS_* variables.

    \b
    Example:
      OMNI_JOBS_DATABASE_URL=postgresql://… OMNI_JOBS_BROKER_URL=redis://… omni-jobs api --host 0.0.0.0
    """
    import gc
    import socket

    # What is loaded stays: the collector need not look through it, now (a sixth of the start) or later.
    gc.disable()
    try:
        from omni_jobs.api.allocator import give_freed_memory_back
        from omni_jobs.api.server import Server, raise_file_limit
        from omni_jobs.api.services import Services

        given = {"api_host": host, "api_port": port}
        found = _served_for_one_user().model_copy(
            update={name: value for name, value in given.items() if value is not None}
        )
        give_freed_memory_back()
        raise_file_limit(found)
        # Opened here, what is wrong is a line and an exit code; in the application's start it would be a traceback.
        server = Server(found, Services.open(found))
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)  # all threads wait while it looks through what a large body was made into
    finally:
        gc.enable()
    sockets = None if fd is None else [socket.socket(fileno=fd)]
    server.run(sockets=sockets)


def worker(
    pipeline: PipelineOption,
    stage: Annotated[str, typer.Option("--stage", "-s", help="The stage's name.", show_default=False)],
    slot: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--slot",
            help="The worker's name: unique, the same again after a restart. Default: PIPELINE.STAGE-1@host.",
            show_default=False,
        ),
    ] = None,
    concurrency: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--concurrency",
            "-c",
            min=1,
            help="Messages at a time; each carries several stage runs.",
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", "-l")] = "INFO",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the Celery command line instead.")] = False,
) -> None:
    """Run one stage's worker: becomes the stock Celery command line.

    \b
    Examples:
      omni-jobs worker --pipeline qwen2_5_omni --stage thinker
      CUDA_VISIBLE_DEVICES=1 omni-jobs worker -p qwen2_5_omni -s talker --slot talker-2@%h
    """
    from omni_jobs.pipelines.loader import load_pipelines
    from omni_jobs.settings import settings
    from omni_jobs.stack.worker_command import (
        POOL_ENVIRONMENT,
        as_shell_line,
        check_worker_installed,
        replace_process,
        worker_command,
    )

    found = load_pipelines(settings().resolved_stage_configs).named(pipeline, field="pipeline")
    command = worker_command(found, stage, settings(), slot=slot, concurrency=concurrency, log_level=log_level)
    if dry_run:
        typer.echo(as_shell_line(command, POOL_ENVIRONMENT))
        return
    check_worker_installed(found, stage)
    _served_for_one_user()
    configs = {"OMNI_JOBS_STAGE_CONFIGS": str(settings().resolved_stage_configs)}
    replace_process(command, {**configs, **POOL_ENVIRONMENT})


def rescuer() -> None:
    """Run a rescuer: takes back what lost workers held, ends what is late, deletes what was kept long enough.

    One is enough; several do no harm.

    \b
    Example:
      OMNI_JOBS_DATABASE_URL=postgresql://… OMNI_JOBS_BROKER_URL=redis://… omni-jobs rescuer
    """
    from omni_jobs.maintenance.rescuer import run

    run(_served_for_one_user())


def migrate() -> None:
    """Bring the database to this version's schema; safe to run twice, and from several hosts.

    \b
    Example:
      OMNI_JOBS_DATABASE_URL=postgresql://… omni-jobs migrate     # before the first API server, and after an update
    """
    from omni_jobs.database.database import Database

    found = _served_for_one_user()
    database = Database(found.resolved_database_url)
    try:
        database.migrate()
    finally:
        database.close()
    typer.echo("the database is up to date")


def prune(as_json: JsonOption = False) -> None:
    """Delete once what has been kept long enough, as a rescuer does all the time, and objects nothing refers to.

    \b
    Examples:
      omni-jobs prune --json
      OMNI_JOBS_KEEP_ARTIFACTS_S=3600 omni-jobs prune     # artifacts of jobs that ended an hour ago
    """
    import json
    from dataclasses import asdict

    from omni_jobs.database.database import Database
    from omni_jobs.jobs import Jobs
    from omni_jobs.maintenance.pruner import Pruner
    from omni_jobs.storage import open_store

    found = _served_for_one_user()
    database = Database(found.resolved_database_url)
    try:
        database.check()
        gone = asdict(Pruner(Jobs(database), open_store(found), found).once())
    finally:
        database.close()
    typer.echo(json.dumps(gone) if as_json else ", ".join(f"{count} {what}" for what, count in gone.items()) + " gone")
