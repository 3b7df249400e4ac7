"""The command that submits many jobs at once."""

from __future__ import annotations

import json
import os
import stat
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import typer

from omni_jobs.cli import options
from omni_jobs.cli.connect import connect, served_pipeline
from omni_jobs.cli.exits import Exit, exit_code, fail, notice
from omni_jobs.cli.request_files import RequestFiles, check_request_files, files_in
from omni_jobs.cli.terminal import console, say, say_json
from omni_jobs.errors import OmniJobsError, Unauthenticated

if TYPE_CHECKING:
    from omni_jobs.client import Client
    from omni_jobs.views import BulkAnswer


def submit_bulk(
    file: options.LinesArgument,
    pipeline: options.DirectoryPipelineOption = None,
    text: options.DirectoryTextOption = None,
    out: options.AnswersOption = "-",  # type: ignore[assignment]  # standard output; typer opens it
    idempotency_key: options.IdempotencyKeyOption = None,
    cancel_after: options.CancelAfterOption = None,
    url: options.UrlOption = None,
) -> None:
    """Submit many jobs, one per line. A refused line does not affect the others, but then the exit code is 1.

    The lines are sent while they are read. The answers come after the last line.

    Of a directory each file is a job: a .json file is a whole request; a sound, a picture or a video is a message to
    --pipeline, with --text. The files are taken in the order of their names, and each answer names its file.

    If the connection breaks, or the server has an outage, a file's lines are sent again with the same key, up to
    four times: only jobs that are missing are made. If that is not enough, send the same lines again with the
    --idempotency-key that the error names. A pipe gives its lines only once, so run the command again that wrote them.

    The server takes no further lines from a pipe that pauses for longer than its settings allow (20 s, and 300 s for
    the whole request). Write the lines of a slower command to a file first.

    \b
    Examples:
      omni-jobs submit-bulk jobs.jsonl --idempotency-key night-run --out answers.jsonl
      omni-jobs submit-bulk recordings --pipeline transcribe --out answers.jsonl
      zcat jobs.jsonl.gz | omni-jobs submit-bulk - > answers.jsonl
      omni-jobs submit-bulk <(jq -c '.jobs[]' jobs.json) --out answers.jsonl
    """
    key = idempotency_key or f"bulk-{uuid.uuid4().hex}"
    accepted = refused = 0
    again = f"send the same lines again with --idempotency-key {key}: no job is made twice"
    with connect(url) as client, _opened(file, client, pipeline, text) as (lines, names):
        try:
            for answer in client.submit_bulk(lines, idempotency_key=key, cancel_after=cancel_after):
                say_json(_answer_text(answer, names), out)
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


def _answer_text(answer: BulkAnswer, names: Sequence[str] | None) -> str:
    """Return a server's answer as it came, on one line, with the name of its file if it has one."""
    if names is None:
        return answer.model_dump_json(exclude_unset=True)
    said = {**answer.model_dump(mode="json", exclude_unset=True), "file": names[answer.line - 1]}
    # Bytes of a file's name that are no UTF-8 become their JSON escapes.
    return json.dumps(said, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


@contextmanager
def _opened(
    file: Path, client: Client, pipeline: str | None, text: str | None
) -> Iterator[tuple[Iterable[bytes], Sequence[str] | None]]:
    """Context manager: the lines of a file, a pipe, standard input or a directory, shown as they are sent.

    Beside them stand the names of a directory's files, else None. Raises BadParameter for what cannot be opened or
    sent, before anything is sent.
    """
    if file.is_dir():
        files = files_in(file)
        if check_request_files(files):
            pipeline = served_pipeline(client, pipeline).label
        yield _ShownRequests(RequestFiles(files, pipeline, text)), [each.name for each in files]
        return
    if pipeline is not None or text is not None:
        raise typer.BadParameter(
            "only a directory takes it: a line is a whole request", param_hint="--pipeline, --text"
        )
    if str(file) == "-":
        yield _lines_of(sys.stdin.buffer), None
        return
    try:
        lines = file.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"'{file}': {error.strerror}", param_hint="FILE") from None
    with lines:
        yield _lines_of(lines), None


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


@dataclass(frozen=True)
class _ShownRequests:
    """The requests of a directory, each time that they are asked for."""

    requests: RequestFiles

    def __iter__(self) -> Iterator[bytes]:
        yield from _with_bar(self.requests, len(self.requests.files), is_of_files=True)


def _with_bar(lines: Iterable[bytes], total: int | None, *, is_of_files: bool = False) -> Iterator[bytes]:
    """Yield the lines, and show on stderr how many bytes, or files, of the ``total`` were sent; None for a pipe."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    sent = MofNCompleteColumn() if is_of_files else DownloadColumn()
    columns = (TextColumn("sending"), BarColumn(), sent, TimeElapsedColumn())
    with Progress(*columns, console=console(err=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("sending", total=total)
        for line in lines:
            yield line
            progress.advance(task, 1 if is_of_files else len(line))
