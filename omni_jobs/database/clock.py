"""The database's clock, by which leases, deadlines and pauses are measured; and its times as datetimes."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class now(FunctionElement[float]):
    """The SQL expression for the database's time, in seconds since 1970 UTC; one value within a statement."""

    type = Double()
    inherit_cache = True
    name = "now"


@compiles(now, "sqlite")
def _now_sqlite(element: now, compiler: Any, **options: Any) -> str:
    # unixepoch('subsec') is younger than Debian 12's SQLite.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _now_postgresql(element: now, compiler: Any, **options: Any) -> str:
    # Not clock_timestamp(): no index serves a comparison with a volatile function.
    return "extract(epoch from statement_timestamp())::double precision"


def as_datetime(seconds: float) -> datetime:
    """Return a time that a column keeps, in seconds since 1970, as an aware UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)
