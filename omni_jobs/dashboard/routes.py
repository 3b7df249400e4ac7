"""``router``: the routes of all pages, and of their static files."""

from typing import Final

from fastapi import APIRouter, Depends

from omni_jobs.dashboard import (
    actions,
    audit,
    charts,
    error_kinds,
    job,
    jobs,
    keys,
    overview,
    payloads,
    plug,
    previews,
    quarantine,
    signin,
    stages,
    static_files,
    tenants,
    trial,
    workers,
)
from omni_jobs.http.request_parameters import check_query

PAGES: Final = (
    actions,
    audit,
    charts,
    error_kinds,
    job,
    keys,
    overview,
    payloads,
    plug,
    previews,
    quarantine,
    signin,
    stages,
    tenants,
    trial,
    workers,
)
"""A page is added here and, if people go to it by itself, in ``navigation``."""

router = APIRouter()
for page in PAGES:
    router.include_router(page.router, dependencies=[Depends(check_query)])
router.include_router(jobs.router)  # it checks its query itself
router.include_router(static_files.router)
