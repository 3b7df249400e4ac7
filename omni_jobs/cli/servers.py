"""The commands that serve (the whole stack or one of its processes), and those that maintain the database."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from omni_jobs.cli import options
from omni_jobs.cli.exits import Exit, notice, raised_signals
from omni_jobs.cli.terminal import say

if TYPE_CHECKING:
    from omni_jobs.database.database import Database
    from omni_jobs.settings import Settings
    from omni_jobs.stack.embedded import EmbeddedStack

logger = logging.getLogger(__name__)


def up(
    pipeline: options.ServePipelinesOption = None,
    model: options.CheckpointsOption = None,
    tiny: options.TinyOption = None,
    data_dir: options.DataDirOption = None,
    port: options.UpPortOption = None,
) -> None:
    """Run the whole system on this machine until Ctrl-C: broker, API, rescuer and one worker per stage.

    Without --pipeline it serves the pipelines that OMNI_JOBS_PIPELINES names; if that is unset, those that --model,
    --tiny or OMNI_JOBS_MODELS gives a checkpoint for; else echo. Where several pipelines could take a checkpoint, its
    model_index.json or config.json decides, unless PIPELINE= names one.

    \b
    Examples:
      omni-jobs up --pipeline echo
      omni-jobs up --tiny qwen2_5_omni
      omni-jobs up --model ~/models/Qwen2.5-Omni-3B
      omni-jobs up --model ~/models/SmolLM2-135M-Instruct --model qwen2_5_omni=~/models/Qwen2.5-Omni-3B
      omni-jobs up --pipeline echo --pipeline qwen2_5_omni --model ~/models/Qwen2.5-Omni-3B --port 9000
    """
    from omni_jobs.cli.checkpoints import build_tiny, chosen_pipelines
    from omni_jobs.logs.secrets import know_secrets
    from omni_jobs.logs.setup import configure
    from omni_jobs.settings import read_settings
    from omni_jobs.stack.child import UMASK
    from omni_jobs.stack.embedded import EmbeddedStack

    os.umask(UMASK)
    settings = read_settings(notice)
    settings = settings.model_copy(update={"data_dir": data_dir or settings.data_dir})
    chosen, models = chosen_pipelines(settings, pipeline or [], model or [], tiny or [])
    with raised_signals():
        models |= build_tiny(settings, tiny or [])
    settings = settings.model_copy(update={"models": settings.models | models})
    port = port if port is not None else _usual_port(settings)
    is_json = settings.log == "json"
    if is_json:
        know_secrets(settings)
        configure("json", "up")
    stack = EmbeddedStack(settings, pipelines=chosen, port=port, on_notice=logger.warning if is_json else notice)
    with raised_signals():
        try:
            (_serve_logged if is_json else _serve_shown)(stack)
        finally:
            stack.stop()


def _serve_shown(stack: EmbeddedStack) -> None:
    """Start the stack and wait for its end or Ctrl-C, before a person's eyes."""
    from omni_jobs.cli.live import show_start

    show_start(stack)
    say(_where(stack))
    say("Press Ctrl-C to stop.")
    try:
        stack.wait()
    except KeyboardInterrupt:
        say("\nstopping …", err=True)


def _serve_logged(stack: EmbeddedStack) -> None:
    """Start the stack and wait for its end or Ctrl-C, with log lines alone."""
    stack.start()
    logger.info("%s", _where(stack))
    try:
        stack.wait()
    except KeyboardInterrupt:
        logger.info("stopping")


def _where(stack: EmbeddedStack) -> str:
    return f"omni-jobs is up at {stack.url}  (pipelines: {', '.join(stack.served)}; logs: {stack.log_dir})"


def settings_for_one_user(
    *, with_database: bool = True, with_objects: bool = True, tell_unknown: bool = True
) -> Settings:
    """Return the settings of a process beside the embedded stack; its files and data directory are this user's alone.

    The data directory is made where the database lies in it, or the objects. The one does not count without
    ``with_database``, nor the others without ``with_objects``, for a process that does not open them. Raises StackError
    if the directory cannot be made or stays open to other users.
    """
    from omni_jobs.errors import StackError
    from omni_jobs.settings import read_settings
    from omni_jobs.stack.child import UMASK
    from omni_jobs.stack.data_directory import make_private

    os.umask(UMASK)
    current = read_settings(notice if tell_unknown else None)
    if (with_database and current.database_url is None) or (with_objects and current.storage_url is None):
        try:
            make_private(current.data_dir.expanduser().resolve())
        except OSError as error:
            raise StackError(f"the data directory cannot be used: {error}") from error
    return current


@contextmanager
def opened_database(*, check: bool = True) -> Iterator[Database]:
    """A context manager that gives the settings' database, and closes it.

    ``check``: raise DatabaseUnavailable unless it answers and has this build's schema.
    """
    from omni_jobs.database.database import Database

    with closing(Database(settings_for_one_user(with_objects=False).resolved_database_url)) as database:
        if check:
            database.check()
        yield database


def _usual_port(settings: Settings) -> int:
    """Return the port of the settings (8000) if it is free, otherwise 0."""
    from omni_jobs.stack.embedded import open_listener

    with suppress(OSError), open_listener(settings.api_host, settings.api_port):
        return settings.api_port
    return 0


def api(
    host: options.HostOption = None,
    port: options.ApiPortOption = None,
    fd: options.FdOption = None,
    plugs_fd: options.PlugsFdOption = None,
) -> None:
    """Run one API server. It takes its settings from OMNI_JOBS_* variables.

    \b
    Example:
      OMNI_JOBS_DATABASE_URL=postgresql://… OMNI_JOBS_BROKER_URL=redis://… omni-jobs api --host 0.0.0.0
    """
    from omni_jobs.api.services import Services
    from omni_jobs.errors import ConfigError
    from omni_jobs.http.process import give_freed_memory_back, raise_file_limit
    from omni_jobs.http.server_logs import server_lines
    from omni_jobs.logs.secrets import know_secrets
    from omni_jobs.logs.setup import configure
    from omni_jobs.servers import check_host
    from omni_jobs.stack.plugs import Plugs
    from omni_jobs.web.server import BoundedServer

    given: dict[str, object] = {} if port is None else {"api_port": port}
    if host is not None:
        try:
            given["api_host"] = check_host(host) if host else host
        except ValueError as error:
            raise ConfigError(str(error), field="--host") from None
    settings = settings_for_one_user().model_copy(update=given)
    know_secrets(settings)
    configure(settings.log, "api", server_lines())
    give_freed_memory_back()
    raise_file_limit(settings)
    # Opened here, an error is one line and an exit code. While the application starts it would be a traceback.
    plugs = None if plugs_fd is None else Plugs(plugs_fd)
    server = BoundedServer(settings, Services(settings), plugs)
    # All threads wait while the collector runs: it skips all that is loaded now, and looks at large bodies less often.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    try:
        server.run(sockets=None if fd is None else [socket.socket(fileno=fd)])
    except SystemExit as ended:  # uvicorn has logged why, and its code of a failed start means another thing here
        raise SystemExit(Exit.FAILED if ended.code else 0) from None


def worker(
    pipeline: options.PipelineOption,
    stage: options.StageOption,
    slot: options.SlotOption = None,
    concurrency: options.ConcurrencyOption = None,
    log_level: options.LogLevelOption = "INFO",
    dry_run: options.DryRunOption = False,
) -> None:
    """Run one stage's worker. The process becomes a stock Celery worker.

    \b
    Examples:
      omni-jobs worker --pipeline qwen2_5_omni --stage thinker
      CUDA_VISIBLE_DEVICES=1 omni-jobs worker -p qwen2_5_omni -s talker --slot talker-2@%h
    """
    from omni_jobs.broker.worker_command import POOL_ENVIRONMENT, as_shell_line, check_worker_installed, worker_command
    from omni_jobs.pipelines.loader import load_pipelines
    from omni_jobs.settings import read_settings

    configs = read_settings().resolved_stage_configs
    config = load_pipelines(configs).named(pipeline, field="pipeline")
    queue = f"{pipeline}.{stage}"  # as the operator calls it: the alias of the newest version's, or one version's own
    command = worker_command(config.stage(stage), queue, slot=slot, concurrency=concurrency, log_level=log_level)
    if dry_run:
        say(as_shell_line(command, POOL_ENVIRONMENT))
        return
    check_worker_installed(config, stage)
    settings_for_one_user(tell_unknown=False)  # the worker's process tells of them
    environment = {**os.environ, "OMNI_JOBS_STAGE_CONFIGS": str(configs), **POOL_ENVIRONMENT}
    for name in ("OMNI_JOBS_API_KEY", "OMNI_JOBS_API_KEY_FILE"):  # a worker calls no API
        environment.pop(name, None)
    os.execvpe(command[0], command, environment)  # noqa: S606 — signals to this process id reach the worker


def rescuer() -> None:
    """Run a rescuer. It frees the stage runs of lost workers, expires late jobs and deletes old data.

    One rescuer is enough. Several do no harm. Give it the API
    server's settings: database, broker, object store.

    \b
    Examples:
      OMNI_JOBS_DATABASE_URL=postgresql://… OMNI_JOBS_BROKER_URL=redis://… omni-jobs rescuer
      OMNI_JOBS_BEAT_FILE=/run/omni-jobs/beat omni-jobs rescuer     # for omni-jobs healthy
    """
    from omni_jobs.logs.secrets import know_secrets
    from omni_jobs.logs.setup import configure
    from omni_jobs.maintenance.rescuer import run

    settings = settings_for_one_user()
    know_secrets(settings)
    configure(settings.log, "rescuer")
    run(settings)


def prune(as_json: options.JsonOption = False) -> None:
    """Delete data that has been kept long enough, and objects without a job, once. A rescuer does it all the time.

    \b
    Examples:
      omni-jobs prune --json
      OMNI_JOBS_KEEP_ARTIFACTS_S=3600 omni-jobs prune     # delete artifacts of jobs that ended an hour ago
    """
    from omni_jobs.jobs import Jobs
    from omni_jobs.maintenance.pruner import Pruner
    from omni_jobs.storage import open_store
    from omni_jobs.tenants.sessions import Sessions

    settings = settings_for_one_user()
    with opened_database() as database:
        pruner = Pruner(Jobs(database), open_store(settings), settings, sessions=Sessions(database))
        gone = asdict(pruner.once())
    say(json.dumps(gone) if as_json else ", ".join(f"{count} {what}" for what, count in gone.items()) + " gone")
