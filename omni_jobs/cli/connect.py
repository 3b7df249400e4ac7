"""``connect``: finds the server that a command talks to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import typer

from omni_jobs.cli.exits import notice
from omni_jobs.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from omni_jobs.client import AsyncClient, Client
    from omni_jobs.views import PipelineView

ClientT = TypeVar("ClientT", "Client", "AsyncClient")


def connect(url: str | None) -> Client:
    """Return a client of the API server at ``url``, which sends nothing yet; the client is a context manager.

    Without ``url`` it is the embedded stack that runs in the data directory; if none runs, http://127.0.0.1:8000.
    Raises ConfigError for a URL that is not http, and without ``url`` also for a wrong setting.
    """
    from omni_jobs.client import Client

    return _client(Client, url)


def connect_async(url: str | None) -> AsyncClient:
    """Return an asynchronous client of the same server. Raises ConfigError as ``connect`` does."""
    from omni_jobs.client import AsyncClient

    return _client(AsyncClient, url)


def _client(kind: type[ClientT], url: str | None) -> ClientT:
    from omni_jobs.settings import read_settings, unknown_variables
    from omni_jobs.stack.data_directory import running_stack

    if url is None:
        url = running_stack(read_settings(notice).data_dir)
    else:
        for line in unknown_variables(os.environ):
            notice(line)
    try:
        return kind(url)
    except ConfigError as error:
        if error.field == "base_url":
            error.field = "OMNI_JOBS_URL" if url == os.environ.get("OMNI_JOBS_URL") else "--url"
        raise


def served_pipeline(client: Client, name: str | None) -> PipelineView:
    """Return the pipeline of this name or NAME@VERSION; for None the server's only one.

    Raises NotFound and BadParameter.
    """
    pipelines = client.pipelines()
    served = {pipeline.label: pipeline for pipeline in pipelines}
    names = ", ".join(served) or "none"
    if name is None:
        if len(served) != 1:
            raise typer.BadParameter(f"name a pipeline: this server serves {names}", param_hint="--pipeline")
        (name,) = served
    for pipeline in pipelines:
        if name in (pipeline.label, f"{pipeline.name}@{pipeline.version}"):
            return pipeline
    raise NotFound(f"unknown pipeline {name!r}; this server serves: {names}", field="model")
