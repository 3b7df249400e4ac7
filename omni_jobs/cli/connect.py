"""``connect``: finds the server that a command talks to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_jobs.client import Client


def connect(url: str | None) -> Client:
    """Return a client of the API server at ``url``, which sends nothing yet; the client is a context manager.

    Without ``url`` it is the embedded stack that runs in the data directory; if none runs, http://127.0.0.1:8000.
    Raises ConfigError for a URL that is not http, and without ``url`` also for a wrong setting.
    """
    from omni_jobs.cli.exits import notice
    from omni_jobs.client import Client
    from omni_jobs.errors import ConfigError
    from omni_jobs.settings import read_settings, unknown_variables
    from omni_jobs.stack.data_directory import running_stack

    if url is None:
        url = running_stack(read_settings(notice).data_dir)
    else:
        for line in unknown_variables(os.environ):
            notice(line)
    try:
        return Client(url)
    except ConfigError as error:
        if error.field == "base_url":
            error.field = "OMNI_JOBS_URL" if url == os.environ.get("OMNI_JOBS_URL") else "--url"
        raise
