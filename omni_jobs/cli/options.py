"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

__all__ = ["CONTEXT", "DataDirOption", "JsonOption", "PipelineOption", "UrlOption"]

CONTEXT = {"help_option_names": ["-h", "--help"]}

UrlOption = Annotated[
    Optional[str],  # noqa: UP045 — typer reads it at run time
    typer.Option(
        "--url",
        envvar="OMNI_JOBS_URL",
        help="The API server. Default: the stack that runs in the data directory, else http://127.0.0.1:8000.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
PipelineOption = Annotated[str, typer.Option("--pipeline", "-p", help="The pipeline's name.", show_default=False)]
DataDirOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--data-dir", help="Where everything is kept. Default: ~/.local/share/omni-jobs.", show_default=False),
]
