"""Visits of the dashboard over HTTP: by keys of tenants, and with forms as its pages send them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx2

from omni_jobs.database.database import Database
from omni_jobs.settings import Settings
from omni_jobs.tenants.key_store import ApiKeys
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.api_server import ApiServer, serve

OWN = {"Sec-Fetch-Site": "same-origin"}
Bearer = Mapping[str, str]
"""The headers of a caller with a key."""


def sent(api: ApiServer, path: str, *fields: tuple[str, str], by: Bearer | None = None) -> httpx2.Response:
    """Send a form of a page."""
    form = [(name, (None, value)) for name, value in (fields or [("x", "")])]
    return api.http.post(path, files=form, headers=OWN | dict(by or {}))


def forms_of(html: str) -> list[str]:
    """The paths to which the forms of a page post, but for the sign-out."""
    return re.findall(r'<form[^>]* method="post" action="(?!/signout)([^"]*)"', html)


@contextmanager
def with_keys(settings: Settings) -> Iterator[tuple[ApiServer, Mapping[str, Bearer]]]:
    """A server that asks for keys, and keys: ``operator`` and ``reader`` of acme, ``other``, who operates globex."""
    database = Database(settings.resolved_database_url)
    for tenant in ("acme", "globex"):
        Tenants(database).create(tenant)
    keys = ApiKeys(database)
    scopes = {"operator": ("acme", ["admin"]), "reader": ("acme", ["read"]), "other": ("globex", ["admin"])}
    bearers = {
        name: {"Authorization": f"Bearer {keys.create(tenant, its, name=name).key}"}
        for name, (tenant, its) in scopes.items()
    }
    database.close()
    with serve(settings.model_copy(update={"auth": "keys"})) as api:
        yield api, bearers
