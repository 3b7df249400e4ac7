"""How a client reaches its server, sends a request and sees a broken connection: the same for both kinds of client."""

from __future__ import annotations

import json
import math
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import urlsplit

import httpx2

from omni_jobs.client.steps import BulkBody, HttpRequest, StoreRequest
from omni_jobs.errors import ConfigError, ServerUnavailable
from omni_jobs.servers import check_base_url
from omni_jobs.tls.certificates import check_trusted, refusal

DEFAULT_URL = "http://127.0.0.1:8000"

_CA_FILE = "OMNI_JOBS_CA_FILE"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


BROKEN = (httpx2.TransportError, httpx2.InvalidURL)
"""What httpx2 raises where no answer comes; the last of a URL to which a server has redirected."""


class ConnectionOptions(TypedDict):
    """The arguments of ``httpx2.Client`` and ``httpx2.AsyncClient``."""

    base_url: str
    timeout: httpx2.Timeout
    verify: ssl.SSLContext | bool
    trust_env: bool
    headers: dict[str, str]


class StoreOptions(TypedDict):
    """The arguments of ``httpx2.Client`` and ``httpx2.AsyncClient`` for a request to the object store."""

    timeout: float
    verify: ssl.SSLContext | bool
    trust_env: bool


def connection_options(
    base_url: str | None, api_key: str | None, timeout: float, ca_file: str | Path | None
) -> ConnectionOptions:
    """Return the options of the connections to a server. Raises ConfigError, as ``ClientMethods`` says."""
    given = os.environ.get("OMNI_JOBS_URL", DEFAULT_URL) if base_url is None else base_url
    try:
        url = check_base_url(given, may_have_user=True)
    except ValueError as error:
        raise ConfigError(str(error), field="OMNI_JOBS_URL" if base_url is None else "base_url") from None
    parts = urlsplit(url)
    return ConnectionOptions(
        base_url=url,
        timeout=silence(timeout),
        verify=parts.scheme != "http" and _trust(ca_file),  # certificates take long to load
        trust_env=parts.hostname not in _LOOPBACK,  # this machine reaches itself without a proxy
        headers={"Accept": "application/json", **_authorization(api_key)},
    )


def _trust(ca_file: str | Path | None) -> ssl.SSLContext | bool:
    """Return whom the client trusts: the authorities of a file, or the system's alone. Raises ConfigError."""
    path, field = (ca_file, "ca_file") if ca_file is not None else (os.environ.get(_CA_FILE), _CA_FILE)
    if path is None:
        return True
    check_trusted(path, field=field)
    return ssl.create_default_context(cafile=path)


def _authorization(api_key: str | None) -> dict[str, str]:
    """Return the header with the key, or the environment's; none without a key. Raises ConfigError."""
    if api_key is None and any(name.upper().startswith("OMNI_JOBS_API_KEY") for name in os.environ):
        from omni_jobs.settings import read_api_key

        api_key = read_api_key()
    if api_key is None:
        return {}
    if not (api_key and api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise ConfigError("not an API key", field="api_key")
    return {"Authorization": f"Bearer {api_key}"}


def request_options(request: HttpRequest, timeout_s: float, content: Any) -> dict[str, Any]:
    """Return the arguments of httpx2's ``stream`` beside method and path; ``content``: a body of lines, or None."""
    return {
        "params": request.params,
        "headers": request.headers,
        "json": request.json,
        "files": None if request.files is None else {name: (name, part) for name, part in request.files.items()},
        "content": content,
        "timeout": silence(timeout_s + request.held_s),
    }


def silence(seconds: float) -> httpx2.Timeout:
    """Return the limit on the server's silence; none if it is infinite.

    Nothing limits the wait for one of the client's own connections: those who have them come to their ends.
    """
    return httpx2.Timeout(seconds if math.isfinite(seconds) else None, pool=None)


def store_options(request: StoreRequest, timeout_s: float, trusted: ssl.SSLContext | bool) -> StoreOptions:
    """Return the options of a connection to the object store; ``trusted``: whom the client trusts for its server.

    The store may be another's, so the system's authorities are trusted as well.
    """
    verify: ssl.SSLContext | bool = True
    if isinstance(trusted, ssl.SSLContext):
        verify = ssl.create_default_context()
        for certificate in trusted.get_ca_certs(binary_form=True):
            verify.load_verify_locations(cadata=certificate)
    return StoreOptions(timeout=timeout_s, verify=verify, trust_env=request.host not in _LOOPBACK)


def ended_line(line: BulkBody) -> bytes:
    """Return a line of a bulk as it is sent, with one line end. Raises TypeError for what is none."""
    match line:
        case Mapping():
            return json.dumps(line).encode() + b"\n"
        case str():
            return ended_line(line.encode("utf-8", "surrogatepass"))
        case bytes():
            return line.rstrip(b"\r\n") + b"\n"
    raise TypeError(f"a line of a bulk is a submit's body, or its JSON as str or bytes, and not {type(line).__name__}")


def unanswered(request: HttpRequest | StoreRequest | None, url: str, error: Exception) -> ServerUnavailable:
    """Return what the client makes of a connection that failed or broke. ``url``: the server's, without a password.

    A server that is not trusted is asked no further time.
    """
    place = f"https://{request.host}" if isinstance(request, StoreRequest) else url
    if (refused := refusal(error, url=place, setting="OMNI_JOBS_URL", trust=_CA_FILE)) is not None:
        found = ServerUnavailable(refused)
        found.retryable = False
        found.__cause__ = error
        return found
    if isinstance(request, StoreRequest):
        found = ServerUnavailable(f"no answer from the object store at {request.host}: {type(error).__name__}")
    else:
        path = "" if request is None else request.path
        found = ServerUnavailable(f"no answer from {url}{path}: {str(error) or type(error).__name__}")
    found.__cause__ = error
    return found
