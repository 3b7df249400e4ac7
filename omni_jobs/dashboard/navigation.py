"""The pages that stand in the navigation, in its order."""

from typing import Final, NamedTuple


class Entry(NamedTuple):
    """A page in the navigation. ``name`` is that of its template, and ``path`` counts from the server's root."""

    name: str
    path: str
    title: str


NAVIGATION: Final = (
    Entry("overview", "/", "Overview"),
    Entry("jobs", "/jobs", "Jobs"),
)
"""A page is added here and in ``routes``."""
