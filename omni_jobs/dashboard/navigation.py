"""The pages that stand in the navigation, in its order."""

from typing import Final, NamedTuple

from omni_jobs.tenants.caller import Scope


class Entry(NamedTuple):
    """A page in the navigation. ``name`` is that of its template, and ``path`` counts from the server's root.

    Who lacks the ``scope`` does not find it there.
    """

    name: str
    path: str
    title: str
    scope: Scope = Scope.READ


NAVIGATION: Final = (
    Entry("overview", "/", "Overview"),
    Entry("jobs", "/jobs", "Jobs"),
    Entry("trial", "/try", "Try"),
    Entry("stages", "/stages", "Stages"),
    Entry("workers", "/workers", "Workers", Scope.ADMIN),
    Entry("errors", "/errors", "Errors"),
    Entry("quarantine", "/quarantine", "Quarantine"),
    Entry("tenants", "/tenants", "Keys and tenants", Scope.ADMIN),
    Entry("audit", "/audit", "Audit", Scope.ADMIN),
)
"""A page is added here and in ``routes``."""

PLUG: Final = Entry("plug", "/plug", "Pull the plug", Scope.ADMIN)
"""Stands behind the others on the embedded stack. No other server has the page."""
