"""The embedded stack: the whole of omni-jobs as child processes on one machine, in one data directory.

    Valkey (from its wheel) ─┐
    migrate ─────────────────┴→ API, rescuer, one worker per stage → ready → … → stop

The children run the same commands as in production, with other URLs. Nothing outlives the stack: the supervisor's
thread stops them, and if this process is killed, its sentinel does.
"""

import errno
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import SecretStr

from omni_jobs.broker.worker_command import POOL_ENVIRONMENT, check_worker_installed, worker_command
from omni_jobs.cores import threads_per_engine
from omni_jobs.database.database import Database
from omni_jobs.errors import ConfigError, PluginBroken, StackError
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline, StageConfig
from omni_jobs.prompts.renderers import checkpoint_of, load_renderer
from omni_jobs.settings import Settings
from omni_jobs.stack.child import API, RESCUER, VALKEY, Child, ChildState, ChildView
from omni_jobs.stack.data_directory import DataDirectory
from omni_jobs.stack.environments import bare_environment, server_environment, worker_environment
from omni_jobs.stack.plugs import PlugBoard
from omni_jobs.stack.readiness import ChildReadiness
from omni_jobs.stack.sentinel import Sentinel
from omni_jobs.stack.supervisor import Supervisor
from omni_jobs.stack.valkey import Valkey
from omni_jobs.storage import open_store

logger = logging.getLogger(__name__)

# Defaults of the workers' environment; the operator's own variables win. Models come from disk, and no library sends
# statistics.
_WORKER_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # vLLM would bind the engines of all workers to the same first cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Without binding, vLLM's CPU engine needs no process of its own: each stage saves 9 s of CPU and 400 MB.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


class EmbeddedStack:
    """A context manager that runs the whole system as child processes, for ``omni-jobs up``, the demo and tests.

        with EmbeddedStack(Settings(data_dir=…, models={"qwen2_5_omni": path}), pipelines=["qwen2_5_omni"]) as stack:
            Client(stack.url).submit(…)

    After ``start``, ``url`` is the API's address, and ``settings`` are those of the children.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        pipelines: Sequence[str],
        port: int | None = None,
        temporary: bool = False,
        on_notice: Callable[[str], None] = logger.warning,
    ) -> None:
        """Check pipelines and checkpoints; start nothing yet.

        One worker runs per stage of ``pipelines``; a pipeline with a missing or broken plug-in gets none, and the API
        tells why. ``port`` is the API's; 0 or None takes a free one. A ``temporary`` stack removes its data directory
        when it stops. ``on_notice`` is called, on any thread, with a line of text when a pipeline is not served, a
        child died, or is ready again.

        Raises NotFound for an unknown pipeline, PluginBroken if all have a broken plug-in, and ConfigError for a wrong
        stage config, a missing or unfit checkpoint, a worker that is not installed, or an address for other machines
        without the setting ``auth``.
        """
        self.url = ""
        self.settings = settings
        self._given = settings
        settings.resolved_auth  # noqa: B018 — raises before anything is started
        self._port = port or 0
        self._temporary = temporary
        self._on_notice = on_notice
        self._names = tuple(pipelines)
        self._pipelines = self._whole_pipelines(load_pipelines(settings.resolved_stage_configs))
        self._directory = DataDirectory(settings.data_dir)
        self._taken = ExitStack()  # what ``stop`` gives back
        self._supervisor: Supervisor | None = None
        self._children: list[Child] = []  # Valkey first

    def _whole_pipelines(self, known: Pipelines) -> dict[str, Pipeline]:
        """Return the pipelines whose plug-ins are whole, by label, and tell of the others. Raises as ``__init__``."""
        whole: dict[str, Pipeline] = {}
        broken: list[PluginBroken] = []
        for name in self._names:
            try:
                pipeline = known.named(name, field="pipeline")
                for stage in pipeline.stages:
                    check_worker_installed(pipeline, stage)
                    self._check_checkpoint(pipeline, pipeline.stage(stage))
            except PluginBroken as error:
                broken.append(error)
                self._on_notice(f"pipeline {name} is not served: {error}")
            else:
                whole[known.label(pipeline)] = pipeline
        if broken and not whole:
            raise broken[0]
        return whole

    def _check_checkpoint(self, pipeline: Pipeline, stage: StageConfig) -> None:
        """Raise ConfigError if the stage's checkpoint is missing or does not fit."""
        if stage.model is None or stage.family is None:
            return
        path = checkpoint_of(pipeline, stage, self._given.models)
        if path is None:
            own = stage.model != pipeline.model
            option = f"--model {pipeline.name}.{stage.name}=PATH" if own else "--model PATH"
            raise ConfigError(f"{pipeline.name} needs a checkpoint directory: {option}", field="models")
        path = path.expanduser()
        if not path.is_dir():
            raise ConfigError(f"no such checkpoint directory: {path}", field=f"models.{pipeline.name}")
        if stage.family.prompts is not None:
            load_renderer(stage.model.family, path)  # raises if it does not fit

    # Life.

    def start(self) -> None:
        """Start every child, and return when all are ready.

        A worker that dies or is late stops its pipeline alone. Raises StackError if no pipeline is left (with the last
        lines of the worker's log), if another child died or was not ready in time, or if another process has the data
        directory or the port; DatabaseUnavailable if the database cannot be migrated; StorageUnavailable or StorageFull
        if the local object directory takes no objects, and ConfigError for a wrong file URL of it, or for a
        certificate of the API, because this stack speaks plain HTTP. Any exception, a signal's included, stops every
        child.
        """
        try:
            self._prepare().start()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Block until all children have ended. If an error and not ``stop`` ended the stack, raise that error."""
        if self._supervisor is not None:
            self._supervisor.wait()

    def stop(self) -> None:
        """Stop all children: SIGTERM, a bounded wait, SIGKILL. Then give back the port and the data directory.

        Remove a temporary stack's data directory. Ctrl-C ends the wait, and is raised at the end. Safe to call twice.
        """
        try:
            if self._supervisor is not None:
                self._supervisor.stop()
        finally:
            self._taken.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log_dir(self) -> Path:
        """The directory with one log file per child."""
        return self._directory.logs

    @property
    def served(self) -> list[str]:
        """The pipelines whose workers run, by label."""
        given_up = {child.pipeline for child in self._children if child.state is ChildState.FAILED}
        return [label for label in self._pipelines if label not in given_up]

    def children(self) -> list[ChildView]:
        """Return a snapshot of every child, Valkey first; none before ``start``. Any thread may call this."""
        return [child.view() for child in self._children]

    # Before the first child.

    def _prepare(self) -> Supervisor:
        """Take the data directory and the port, start the sentinel, and return the supervisor, not yet started."""
        if self._given.tls_certificate is not None:
            text = "this stack speaks plain HTTP: put a proxy with TLS before it, or run omni-jobs api"
            raise ConfigError(text, field="OMNI_JOBS_TLS_CERTIFICATE")
        self._directory.open()
        self._taken.callback(self._directory.close, remove=self._temporary)
        given = self._given.model_copy(update={"data_dir": self._directory.path})
        if urlsplit(given.resolved_storage_url).scheme == "file":
            open_store(given).check()
        listener = self._taken.enter_context(self._listen())
        memory = Path("/dev/shm")  # noqa: S108 — a directory of our own is made in it
        temporary_files = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
        spool = given.spool_dir or temporary_files / f"omni-jobs-{secrets.token_hex(4)}"
        removed = [spool] if given.spool_dir is None else []
        if self._temporary:
            removed.append(self._directory.path)
        sentinel = Sentinel(lock_fd=self._directory.lock_fd, remove=removed)
        self._taken.callback(sentinel.stop)
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        if given.spool_dir is None:
            self._taken.callback(shutil.rmtree, spool, ignore_errors=True)
        host, port = listener.getsockname()[:2]
        self.url = base_url(host, port)
        valkey = Valkey(self._directory.valkey)
        self.settings = given.model_copy(
            update={
                "stage_configs": self._given.resolved_stage_configs,
                "pipelines": self._names,
                "models": {name: path.expanduser().resolve() for name, path in self._given.models.items()},
                "spool_dir": spool,
                "beat_file": None,  # one file cannot tell of several processes
                "load_locks_dir": given.load_locks_dir or self._directory.load_locks,
                "api_host": host,
                "api_port": port,
                "broker_url": SecretStr(valkey.url),
            }
        )
        board = self._taken.enter_context(closing(PlugBoard()))
        self._children = self._make_children(valkey, listener.fileno(), board.fd)
        database = Database(self.settings.resolved_database_url)
        self._supervisor = Supervisor(
            self._children,
            database=database,
            readiness=ChildReadiness(valkey, self.url, database, self._directory.rescuer_beat),
            load_limit_s=self.settings.load_limit_s,
            stall_after_s=self.settings.stall_after_s,
            sentinel=sentinel,
            board=board,
            on_ready=lambda: self._directory.write_url(self.url),
            on_notice=self._on_notice,
            temporary=self._temporary,
        )
        return self._supervisor

    def _listen(self) -> socket.socket:
        """Open the API's socket here, so that no other process takes the port, also while the API restarts."""
        host = self._given.api_host
        try:
            return open_listener(host, self._port)
        except OSError as error:
            remedy = "name an address of this machine in OMNI_JOBS_API_HOST"
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                remedy = "try another --port"
            why = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else error.strerror
            raise StackError(f"cannot listen on {host} port {self._port} ({why}): {remedy}") from error

    def _make_children(self, valkey: Valkey, listener: int, plugs: int) -> list[Child]:
        unbuffered = {"PYTHONUNBUFFERED": "1"}
        for_servers = server_environment(os.environ, self.settings) | unbuffered
        for_rescuer = for_servers | {"OMNI_JOBS_BEAT_FILE": str(self._directory.rescuer_beat)}
        omni_jobs = [sys.executable, "-m", "omni_jobs.cli"]
        commands = {
            VALKEY: (valkey.command(), bare_environment(os.environ)),
            API: ([*omni_jobs, "api", "--fd", str(listener), "--plugs-fd", str(plugs)], for_servers),
            RESCUER: ([*omni_jobs, "rescuer"], for_rescuer),
        }
        threads = threads_per_engine(sum(len(pipeline.stages) for pipeline in self._pipelines.values()))
        defaults = _WORKER_ENVIRONMENT | {"OMP_NUM_THREADS": str(threads)}
        for_workers = defaults | worker_environment(os.environ, self.settings) | unbuffered | POOL_ENVIRONMENT
        pipeline_of = {}
        for label, pipeline in self._pipelines.items():
            for stage, config in pipeline.stages.items():
                name, slot = f"worker {label}.{stage}", f"{label.replace('@', '-')}.{stage}-1@%h"
                commands[name] = worker_command(config, pipeline.queue(stage), slot=slot), for_workers
                pipeline_of[name] = label
        return [
            Child(
                name,
                command,
                environment=environment if name == VALKEY else environment | self._metrics_port(number),
                directory=self._directory.path,
                log=self._directory.new_log(name.replace(" ", "-")),
                pass_fds=(listener, plugs) if name == API else (),
                pipeline=pipeline_of.get(name),
            )
            for number, (name, (command, environment)) in enumerate(commands.items())
        ]

    def _metrics_port(self, number: int) -> dict[str, str]:
        """Return the variable of a child's port for metrics: the API has that of the settings, the others the next."""
        port = self.settings.metrics_port
        if port is None:
            return {}
        return {"OMNI_JOBS_METRICS_PORT": str(port + number - 1 if port else 0)}


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a host's name or address; 0 takes a free port, an empty host every address.

    A name that has addresses of both kinds takes that of IPv4. Raises OSError.
    """
    found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)  # noqa: S104
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return socket.create_server(address, family=family, backlog=1024)


def base_url(host: str, port: int) -> str:
    """Return the URL of a server at an address; one of IPv6 stands in brackets."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
