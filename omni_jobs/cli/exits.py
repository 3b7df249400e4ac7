"""How commands end: exit codes, errors printed as one line on stderr, and signals."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from omni_jobs.cli.terminal import printable, say
from omni_jobs.errors import Conflict, DatabaseUnavailable, InvalidRequest, NotFound, OmniJobsError
from omni_jobs.states import JobState


class Exit:
    """The exit codes of ``omni-jobs`` for errors. Its --help explains them, except 130 for Ctrl-C."""

    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    TIMEOUT = 5
    CANCELLED = 6
    EXPIRED = 7
    TO_DO = 8
    INTERRUPTED = 130


class Subcommands(TyperGroup):
    """The group of subcommands: errors that a user can mend give a line and an exit code.

    These are OmniJobsError, a timeout, Ctrl-C, and a file that cannot be read or written. A closed pipe gives 0.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:  # typer prints it, which may name what a server serves
            error.message = printable(error.message)
            raise
        except OmniJobsError as error:
            fail(str(error), exit_code(error))
        except TimeoutError as error:
            fail(str(error), Exit.TIMEOUT)
        except KeyboardInterrupt:
            fail("interrupted", Exit.INTERRUPTED)
        except BrokenPipeError:  # the reader of a pipe, such as `head`, has left
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            if error.filename is None:
                raise
            fail(f"{error.filename}: {error.strerror}", Exit.FAILED)


def act_on_each(ids: Sequence[str], act: Callable[[str], object]) -> None:
    """Call ``act`` with each id. NotFound or Conflict of one is printed, and the command fails once all were tried.

    Another error ends the command at once, because it would come again for the next.
    """
    first: OmniJobsError | None = None
    for each in ids:
        try:
            act(each)
        except (NotFound, Conflict) as error:
            notice(f"{each}: {error}")
            first = first or error
    if first is not None:
        raise typer.Exit(exit_code(first))


def exit_code(error: OmniJobsError) -> int:
    """Return the exit code for an error: NOT_FOUND, USAGE, UNREACHABLE for a 503 that passes, else FAILED."""
    if isinstance(error, DatabaseUnavailable) and error.lasts:
        return Exit.FAILED
    if isinstance(error, NotFound):
        return Exit.NOT_FOUND
    if isinstance(error, InvalidRequest):
        return Exit.USAGE
    return Exit.UNREACHABLE if error.http_status == 503 and error.retryable else Exit.FAILED


def exit_code_of_job(status: JobState) -> int:
    """Return the exit code for a job that has ended: 0 if it completed."""
    codes = {JobState.COMPLETED: 0, JobState.CANCELLED: Exit.CANCELLED, JobState.EXPIRED: Exit.EXPIRED}
    return codes.get(status, Exit.FAILED)


def notice(message: str) -> None:
    """Print ``omni-jobs: message`` on stderr."""
    say(f"omni-jobs: {message}", err=True)


def fail(message: str, code: int) -> NoReturn:
    """Print ``omni-jobs: message`` on stderr, and raise typer.Exit, which ends the command with this code."""
    notice(message)
    raise typer.Exit(code)


@contextmanager
def raised_signals() -> Iterator[None]:
    """A context manager that raises KeyboardInterrupt in its block on SIGINT, SIGTERM and SIGHUP.

    So the block closes all that it has opened. SIGINT raises even where a shell's ``&`` had it ignored, but a SIGHUP
    that nohup ignores stays ignored. Only the main thread may use this.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
