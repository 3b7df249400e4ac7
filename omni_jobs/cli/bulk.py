"""The command that submits many jobs at once."""

from __future__ import annotations

import os
import stat
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, BinaryIO, Optional

import typer

from omni_jobs.cli.exits import Exit, exit_code, fail
from omni_jobs.cli.options import UrlOption
from omni_jobs.errors import OmniJobsError

if TYPE_CHECKING:
    from omni_jobs.views import BulkAnswer

__all__ = ["submit_bulk"]


def submit_bulk(
    file: Annotated[
        str, typer.Argument(help="JSON lines, each the body of a job: a file, a pipe, or - for standard input.")
    ],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out", help="Write the answers here, a line each. Default: standard output.", show_default=False
        ),
    ] = None,
    idempotency_key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--idempotency-key",
            help="Sending the same lines again with it makes only what is missing. Default: a new one, which is "
            "told when the connection breaks.",
            show_default=False,
        ),
    ] = None,
    cancel_after: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--cancel-after", metavar="TIME", help="Stop each job by itself after 90s, 15m, 2h.", show_default=False
        ),
    ] = None,
    url: UrlOption = None,
) -> None:
    """Submit many jobs, one a line; a line that is refused disturbs no other.

    The lines are sent as they are read; the answers come once all are sent.

    When the connection breaks, send the same lines again with the same key.
    A pipe gives its lines once: run again what wrote them. The server cuts a
    pipe off that pauses for longer than its settings say (20 s, and 300 s
    together): put the lines of a slower one into a file first.

    \b
    Examples:
      omni-jobs submit-bulk jobs.jsonl --idempotency-key night-run --out answers.jsonl
      zcat jobs.jsonl.gz | omni-jobs submit-bulk - > answers.jsonl
      omni-jobs submit-bulk <(jq -c '.jobs[]' jobs.json) --out answers.jsonl
    """
    from omni_jobs.cli.jobs import client_of

    key = idempotency_key or f"bulk-{uuid.uuid4().hex}"
    accepted = refused = 0
    with _opened(file) as lines, _written(out) as answers, client_of(url) as client:
        try:
            for answer in client.submit_bulk(_with_bar(lines), idempotency_key=key, cancel_after=cancel_after):
                answers.write(answer.model_dump_json(exclude_defaults=True) + "\n")
                accepted, refused = accepted + _is_accepted(answer), refused + (not _is_accepted(answer))
        except OmniJobsError as error:
            again = f"send the same lines again with --idempotency-key {key}: what was taken is not made twice"
            fail(f"{error}; {again}" if error.retryable else str(error), exit_code(error))
    typer.echo(f"{accepted} accepted, {refused} refused", err=True)
    if refused:
        raise typer.Exit(Exit.FAILED)


def _is_accepted(answer: BulkAnswer) -> bool:
    return answer.error is None


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """Anything that can be read from its begin to its end: a file, a pipe, standard input."""
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        lines = open(file, "rb")  # noqa: SIM115 — closed below, and only its opening may be wrong usage
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}", param_hint="FILE") from error
    with lines:
        yield lines


def _with_bar(lines: BinaryIO) -> Iterator[bytes]:
    """The lines, with a bar of the bytes on stderr. What a pipe will give is not known: its bar has no end."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("sending", total=_size_of(lines))
        for line in lines:
            yield line
            progress.advance(task, len(line))


def _size_of(lines: BinaryIO) -> int | None:
    """The bytes still to come; None where only their end will tell."""
    try:
        found = os.fstat(lines.fileno())
    except (OSError, ValueError):  # standard input that is no file at all
        return None
    return found.st_size - lines.tell() if stat.S_ISREG(found.st_mode) else None


@contextmanager
def _written(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    try:
        answers = open(out, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise typer.BadParameter(f"{out} cannot be written: {error.strerror}", param_hint="--out") from error
    with answers:
        yield answers
