"""``Supervisor``: the thread that owns the embedded stack's children, from the first start to the last SIGKILL.

    start the broker → migrate the database → start the others → all ready → restart any that dies → stop all

The thread that calls ``Supervisor`` only waits, so a signal may interrupt it anywhere.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass

from omni_jobs.database.database import Database
from omni_jobs.errors import DatabaseUnavailable, OmniJobsError, StackError
from omni_jobs.jobs import Jobs
from omni_jobs.stack.child import Child, ChildState
from omni_jobs.stack.plugs import PlugBoard, Pull, has_plug
from omni_jobs.stack.readiness import ChildReadiness, ChildWatch
from omni_jobs.stack.sentinel import Sentinel, end_sessions

VALKEY_START_S = 20.0
VALKEY_STOP_S = 10.0
STOP_S = 30.0  # for API, rescuer and workers after SIGTERM; vLLM needs most of it
TEMPORARY_STOP_S = 2.0
POLL_S = 0.1


class _Stopped(Exception):
    """``Supervisor.stop`` was called: leaves the loops of the supervisor's thread."""


@dataclass(eq=False, repr=False)
class Supervisor:
    """Starts the embedded stack's children, restarts those that die, and stops all of them, in one thread of its own.

    Each child leads a session of its own. A session is ended whole, so that a worker's engine processes never outlive
    their worker.
    """

    children: Sequence[Child]  # Valkey first, which the others use
    _: KW_ONLY
    database: Database  # the thread closes it at its end
    readiness: ChildReadiness
    load_limit_s: float  # between two children that turn ready, because workers of one GPU load one after another
    stall_after_s: float  # a child that serves no longer is killed after this
    sentinel: Sentinel
    board: PlugBoard  # by which the API has a child killed
    on_ready: Callable[[], None]  # the thread calls it once all children are ready,
    on_notice: Callable[[str], None]  # and this with what an operator should know: a child died, hangs, is ready again
    temporary: bool  # the children get less time to stop

    def __post_init__(self) -> None:
        self._events: queue.Queue[tuple[Child, int] | Pull | None] = queue.Queue()  # an exit: (child, pid); None: stop
        self._hurry = threading.Event()  # set by a second Ctrl-C: no grace
        self._settled = threading.Event()  # all children are ready, or all have ended
        self._ended = threading.Event()
        self._failure: OmniJobsError | None = None
        self._thread = threading.Thread(target=self._run, name="embedded-stack", daemon=True)

    # The caller's thread.

    def start(self) -> None:
        """Start all children, and return when they are ready.

        A worker that ends or is late stops its pipeline alone. Raises StackError if no pipeline is left, or if another
        child cannot start, ends or is late, and DatabaseUnavailable if the migration fails.
        """
        self.board.open(self.children, self._events.put)
        self._thread.start()
        self._settled.wait()
        self._raise_failure()

    def wait(self) -> None:
        """Block until all children have ended. If an error and not ``stop`` ended the stack, raise that error."""
        self._ended.wait()
        self._raise_failure()

    def stop(self) -> None:
        """Stop all children: SIGTERM, a bounded wait, SIGKILL. Ctrl-C hastens the SIGKILL, and is raised at the end."""
        if self._thread.ident is None:  # never started
            return
        self._events.put(None)
        try:
            self._ended.wait()  # Python 3.11 takes a thread for ended once its join is interrupted
        except BaseException:
            self._hurry.set()
            self._events.put(None)
            self._ended.wait()
            raise

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The supervising thread.

    def _run(self) -> None:
        try:
            with closing(self.database):
                self._start_all()
                self.on_ready()
                self._settled.set()
                self._keep_running()
        except _Stopped:
            pass
        except OmniJobsError as error:
            self._failure = error
        except OSError as error:  # a log that cannot be written, no memory for a process
            where = "" if error.filename is None else f"{error.filename}: "
            self._failure = StackError(f"{where}{error.strerror or error}")
        except Exception as error:  # noqa: BLE001 — raised in the caller's thread
            self._failure = StackError(f"{type(error).__name__}: {error}")
        finally:
            try:
                self._stop_all()
            finally:
                self._ended.set()
                self._settled.set()

    def _start_all(self) -> None:
        valkey, *others = self.children
        self._start(valkey)
        self.database.migrate()
        self._await_ready([valkey], VALKEY_START_S)
        for child in others:
            self._start(child)
        self._await_ready(others, self.load_limit_s)

    def _start(self, child: Child) -> None:
        pid = child.start(lambda pid: self._events.put((child, pid)))
        self.sentinel.watch(pid)

    def _await_ready(self, children: Sequence[Child], limit_s: float) -> None:
        """Wait until all these children serve. One that ends meanwhile, or is late, is given up.

        Late is who still waits when for ``limit_s`` none has turned ready. Raises StackError if nothing is left to
        serve.
        """
        deadline = time.monotonic() + limit_s
        waiting = list(children)
        while waiting:
            dead = self._next_exit(POLL_S)
            if dead is not None:
                self._give_up(dead, f"ended with {dead.exit_in_words} while starting")
            waiting = [child for child in waiting if child.state is ChildState.STARTING]
            for child in [child for child in waiting if self.readiness.serves(child)]:
                child.mark_ready()
                waiting.remove(child)
                deadline = time.monotonic() + limit_s
            if waiting and time.monotonic() > deadline:
                self._give_up(waiting[0], f"was not ready after {limit_s:.0f} s")
                deadline = time.monotonic() + limit_s

    def _give_up(self, child: Child, what: str) -> None:
        """End a child and the other workers of its pipeline. Raises StackError if that leaves no pipeline."""
        error = _failed(child, what)
        others = {each.pipeline for each in self.children if each.state is not ChildState.FAILED}
        if child.pipeline is None or not others - {None, child.pipeline}:
            raise error
        given_up = [each for each in self.children if each.pipeline == child.pipeline]
        for each in given_up:
            each.state = ChildState.FAILED  # so that nobody starts it anew
        pids = {each.pid for each in given_up if each.pid is not None}
        end_sessions(pids, grace_s=TEMPORARY_STOP_S)
        for pid in pids:
            self.sentinel.forget(pid)
        self._tell(f"pipeline {child.pipeline} is not served, the others are: {error.message}")

    def _tell(self, line: str) -> None:
        """Give a line of text to ``on_notice``; the stack goes on where nothing can be written, as on a full disk."""
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            self.on_notice(line)

    def _next_exit(self, timeout: float | None) -> Child | None:
        """Return the next child that died, None after ``timeout`` seconds. Raises _Stopped."""
        try:
            event = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        if event is None:
            raise _Stopped
        if isinstance(event, Pull):
            self._obey(event)
            return None
        child, pid = event
        return child if child.pid == pid and child.state is not ChildState.FAILED else None

    def _obey(self, pull: Pull) -> None:
        """Kill the child whose plug is pulled, once the audit says so. A child that is not ready is left alone."""
        child = next((each for each in self.children if each.name == pull.child and has_plug(each)), None)
        if child is None:
            pull.refuse(f"this stack has no such process: {pull.child!r:.80}")
        elif child.state is not ChildState.READY or not self._settled.is_set():
            pull.refuse(f"{child.name} is {child.state}: its plug can be pulled once it is ready")
        else:
            try:
                Jobs(self.database).note_kill(child.name, by=pull.by)
            except DatabaseUnavailable as error:
                pull.refuse(f"{child.name} is not killed, because the audit takes no note: {error.message}")
                return
            self._tell(f"the plug of {child.name} is pulled")
            pull.grant()
            child.unplug()

    def _keep_running(self) -> None:
        """Restart each child that dies, after a pause that grows while it keeps dying. Ends by _Stopped.

        One that hangs is killed, so that it dies.
        """
        watch = ChildWatch(self.children, self.readiness.still_serves, self.stall_after_s)
        while True:
            unsettled = [c for c in self.children if c.state in (ChildState.STARTING, ChildState.RESTARTING)]
            dead = self._next_exit(POLL_S if unsettled else watch.check_s)
            if dead is not None and dead.pid is not None:
                end_sessions({dead.pid}, grace_s=0)  # it may have left processes, such as a worker's engine
                self.sentinel.forget(dead.pid)
                pause_s = dead.schedule_restart()
                when = f"in {pause_s:.0f} s" if pause_s else "at once"
                self._tell(f"{dead.name} ended with {dead.exit_in_words}; it is started anew {when} ({dead.log})")
            for child in unsettled:
                if child.state is ChildState.RESTARTING and time.monotonic() >= child.restart_at:
                    self._restart(child)
                elif child.state is ChildState.STARTING and self.readiness.serves(child):
                    child.mark_ready()
                    self._tell(f"{child.name} is ready again")
            if watch.is_due:
                self._end_what_hangs(watch)

    def _end_what_hangs(self, watch: ChildWatch) -> None:
        for child, seconds in watch.hanging():
            self._tell(f"{child.name} (process {child.pid}) hangs for {seconds:.0f} s, or is stopped: it is killed")
            child.kill()
        if self.sentinel.renew():
            self._tell("the sentinel process ended; it is started anew")

    def _restart(self, child: Child) -> None:
        try:
            self._start(child)
        except OSError as error:  # no memory, too many processes, or no room for its log
            pause_s = child.schedule_restart()
            self._tell(f"{child.name} does not start; another try follows in {pause_s:.0f} s: {error}")

    def _stop_all(self) -> None:
        """Stop workers, rescuer and API together, then Valkey, which they use to the end."""
        valkey, *others = self.children
        sessions = self.sentinel.sessions
        for child in others:
            child.ask_to_stop()
        self._await_ends(others, TEMPORARY_STOP_S if self.temporary else STOP_S)
        end_sessions(sessions - {valkey.pid}, grace_s=0 if self._hurry.is_set() or self.temporary else 2.0)
        valkey.ask_to_stop()
        self._await_ends([valkey], VALKEY_STOP_S)
        end_sessions(sessions, grace_s=0)
        for child in self.children:
            if child.state is ChildState.STOPPING:
                child.state = ChildState.STOPPED

    def _await_ends(self, children: Sequence[Child], limit_s: float) -> None:
        """Wait until these children have ended, ``limit_s`` at the most, or until the caller is in a hurry."""
        deadline = time.monotonic() + limit_s
        while any(child.runs for child in children) and time.monotonic() < deadline and not self._hurry.is_set():
            with suppress(queue.Empty):
                self._events.get(timeout=POLL_S)


def _failed(child: Child, what: str) -> StackError:
    """Mark the child as failed; return an error that ends with the last lines of its log."""
    child.state = ChildState.FAILED
    lines = "\n".join(f"    {line}" for line in child.last_lines())
    return StackError(f"{child.name} {what}; the end of {child.log}:\n{lines}")
