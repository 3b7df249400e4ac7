"""The command that submits many jobs at once."""

import os
import stat
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import typer

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect
from omni_jobs.cli.exits import Exit, exit_code, fail, notice
from omni_jobs.cli.terminal import console, say, say_json
from omni_jobs.errors import OmniJobsError, Unauthenticated


def submit_bulk(
    file: options.LinesArgument,
    out: options.AnswersOption = "-",  # type: ignore[assignment]  # standard output; typer opens it
    idempotency_key: options.IdempotencyKeyOption = None,
    cancel_after: options.CancelAfterOption = None,
    url: options.UrlOption = None,
) -> None:
    """Submit many jobs, one per line. A refused line does not affect the others, but then the exit code is 1.

    The lines are sent while they are read. The answers come after the last line.

    If the connection breaks, or the server has an outage, a file's lines are sent again with the same key, up to
    four times: only jobs that are missing are made. If that is not enough, send the same lines again with the
    --idempotency-key that the error names. A pipe gives its lines only once, so run the command again that wrote them.

    The server takes no further lines from a pipe that pauses for longer than its settings allow (20 s, and 300 s for
    the whole request). Write the lines of a slower command to a file first.

    \b
    Examples:
      omni-jobs submit-bulk jobs.jsonl --idempotency-key night-run --out answers.jsonl
      zcat jobs.jsonl.gz | omni-jobs submit-bulk - > answers.jsonl
      omni-jobs submit-bulk <(jq -c '.jobs[]' jobs.json) --out answers.jsonl
    """
    key = idempotency_key or f"bulk-{uuid.uuid4().hex}"
    accepted = refused = 0
    again = f"send the same lines again with --idempotency-key {key}: no job is made twice"
    with connect(url) as client:
        try:
            for answer in client.submit_bulk(_lines_of(file), idempotency_key=key, cancel_after=cancel_after):
                say_json(answer.model_dump_json(exclude_defaults=True), out)
                if answer.error is None:
                    accepted += 1
                else:
                    refused += 1
        except OmniJobsError as error:
            if accepted or refused:
                say(f"{accepted} accepted, {refused} refused so far", err=True)
            may_help = error.retryable or isinstance(error, Unauthenticated)
            fail(f"{error}; {again}" if may_help else str(error), exit_code(error))
        except BrokenPipeError:  # the reader of the answers has enough
            raise
        except (KeyboardInterrupt, OSError):
            notice(again)
            raise
    say(f"{accepted} accepted, {refused} refused", err=True)
    if refused:
        raise typer.Exit(Exit.FAILED)


def _lines_of(file: BinaryIO) -> Iterable[bytes]:
    """Return the lines of a file, shown as they are sent. Those of a regular file can be read again, a pipe's once."""
    try:
        status = os.fstat(file.fileno())
    except (OSError, ValueError):  # standard input may have no file descriptor
        return _with_bar(file, None)
    if not stat.S_ISREG(status.st_mode):
        return _with_bar(file, None)
    return _FileLines(file, file.tell(), status.st_size)


@dataclass(frozen=True)
class _FileLines:
    """The lines of a regular file from a position on, each time that they are asked for."""

    file: BinaryIO
    start: int
    size: int

    def __iter__(self) -> Iterator[bytes]:
        self.file.seek(self.start)
        yield from _with_bar(self.file, self.size - self.start)


def _with_bar(lines: BinaryIO, size: int | None) -> Iterator[bytes]:
    """Yield the lines, and show the bytes sent as a progress bar on stderr; ``size`` bytes, None for a pipe."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("sending", total=size)
        for line in lines:
            yield line
            progress.advance(task, len(line))
