"""The command that submits many jobs at once."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Optional

import typer

from omni_jobs.cli.exits import Exit
from omni_jobs.cli.options import UrlOption

if TYPE_CHECKING:
    from omni_jobs.views import BulkAnswer

__all__ = ["submit_bulk"]


def submit_bulk(
    file: Annotated[str, typer.Argument(help="JSON lines, each the body of a job; - reads standard input.")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out", help="Write the answers here, a line each. Default: standard output.", show_default=False
        ),
    ] = None,
    idempotency_key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--idempotency-key", help="Sending the file again with it makes only what is missing.", show_default=False
        ),
    ] = None,
    url: UrlOption = None,
) -> None:
    """Submit many jobs, one a line; a line that is refused disturbs no other.

    \b
    Examples:
      omni-jobs submit-bulk jobs.jsonl --idempotency-key night-run --out answers.jsonl
      zcat jobs.jsonl.gz | omni-jobs submit-bulk - > answers.jsonl
    """
    from omni_jobs.cli.jobs import client_of

    accepted = refused = 0
    with _opened(file) as lines, _written(out) as answers, client_of(url) as client:
        for answer in client.submit_bulk(lines, idempotency_key=idempotency_key):
            answers.write(answer.model_dump_json(exclude_defaults=True) + "\n")
            accepted, refused = accepted + _is_accepted(answer), refused + (not _is_accepted(answer))
    typer.echo(f"{accepted} accepted, {refused} refused", err=True)
    if refused:
        raise typer.Exit(Exit.FAILED)


def _is_accepted(answer: BulkAnswer) -> bool:
    return answer.error is None


@contextmanager
def _opened(file: str) -> Iterator[Iterable[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    from rich.console import Console
    from rich.progress import open as open_with_bar

    if not Path(file).is_file():
        raise typer.BadParameter(f"no such file: {file}", param_hint="FILE")
    with open_with_bar(file, "rb", description="sending", console=Console(stderr=True), transient=True) as lines:
        yield lines


@contextmanager
def _written(out: Path | None) -> Iterator[IO[str]]:
    if out is None:
        yield sys.stdout
        return
    with open(out, "w", encoding="utf-8") as answers:
        yield answers
