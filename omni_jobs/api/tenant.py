"""The tenant of a request: what the header says that a proxy in front sets, where the setting names one."""

from __future__ import annotations

import re

from fastapi import Request

from omni_jobs.errors import InvalidRequest
from omni_jobs.settings import Settings
from omni_jobs.views import DEFAULT_TENANT

__all__ = ["tenant_of"]

_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}")


def tenant_of(request: Request, settings: Settings) -> str:
    """The tenant, DEFAULT_TENANT for a request without one. Raises InvalidRequest naming the header."""
    header = settings.tenant_header
    given = [] if header is None else request.headers.getlist(header)
    if not given:
        return DEFAULT_TENANT
    if len(given) > 1 or not _TENANT.fullmatch(given[0]):
        raise InvalidRequest("must be 1 to 64 letters, digits, dots, dashes or underscores, once", field=header)
    return given[0]
