"""What migrations do to tables that may be large, without making a live stack wait on PostgreSQL.

Each commits what its migration has done before. So a migration that was killed is begun again in its middle: use only
these in it, and nothing else that cannot be done twice.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

_LONGEST_BUILD_WAIT = "10min"  # for older transactions, such as a dump's; nobody waits for an index that is being built
_INVALID = sa.text(
    "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(quote_ident(:name)) AND NOT (indisvalid AND indisready)"
)


def build_index(name: str, table: str, columns: Sequence[str], *, where: str | None = None) -> None:
    """Create an index while others go on to write the table. SQLite has no such way: there they wait.

    One that a killed process has left half built is dropped first.
    """
    context = op.get_context()
    condition: Any = None if where is None else sa.text(where)
    if context.dialect.name != "postgresql":
        op.create_index(name, table, columns, sqlite_where=condition)
        return
    with context.autocommit_block():
        if not context.as_sql:
            op.execute(f"SET lock_timeout = '{_LONGEST_BUILD_WAIT}'")
            if op.get_bind().execute(_INVALID, {"name": name}).scalar() is not None:
                op.drop_index(name, table, postgresql_concurrently=True, if_exists=True)
        op.create_index(
            name, table, columns, postgresql_concurrently=True, if_not_exists=True, postgresql_where=condition
        )
        if not context.as_sql:
            op.execute("RESET lock_timeout")


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column, unless a killed process has: for a migration that builds an index after it."""
    op.add_column(table, column, if_not_exists=True if op.get_context().dialect.name == "postgresql" else None)
