"""Exit codes, and errors printed as one line on stderr."""

import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from omni_jobs.errors import NotFound, OmniJobsError


class Exit:
    """The exit codes of the command ``omni-jobs``, as its --help lists them."""

    FAILED = 1
    UNREACHABLE = 3
    NOT_FOUND = 4
    TIMEOUT = 5
    INTERRUPTED = 130


class Group(TyperGroup):
    """The command ``omni-jobs``: prints a subcommand's error as one line on stderr, and exits with its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OmniJobsError as error:
            fail(str(error), exit_code(error))
        except TimeoutError as error:
            fail(str(error), Exit.TIMEOUT)
        except KeyboardInterrupt:
            fail("interrupted", Exit.INTERRUPTED)
        except BrokenPipeError:  # the reader of a pipe, such as `head`, has left
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


def exit_code(error: OmniJobsError) -> int:
    """Return the exit code of the command ``omni-jobs`` for an error."""
    if isinstance(error, NotFound):
        return Exit.NOT_FOUND
    return Exit.UNREACHABLE if error.http_status == 503 else Exit.FAILED


def fail(message: str, code: int) -> NoReturn:
    """Print ``omni-jobs: message`` on stderr, and exit with this code."""
    typer.echo(f"omni-jobs: {message}", err=True)
    raise typer.Exit(code)
