"""The database's clock, by which leases, deadlines and pauses are measured; and its times as datetimes."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from omni_jobs.database.statement import words


class now(FunctionElement[float]):
    """The SQL expression for the database's time, in seconds since 1970 UTC; one value within a statement."""

    type = Double()
    inherit_cache = True
    name = "now"


@compiles(now)
def _now(element: now, compiler: Any, **options: Any) -> str:
    return words(compiler.dialect.name)["now"]


def as_datetime(seconds: float) -> datetime:
    """Return a time that a column keeps, in seconds since 1970, as an aware UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)
