"""The SQL insert of a row whose key may be taken already."""

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite


def insert_or(tx: Connection, table: Any) -> Any:
    """Return an insert into a table, of this database's own kind, which may say what to do on a conflict."""
    return (postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert)(table)


def insert_unless_there(tx: Connection, table: Any, **values: Any) -> None:
    """Insert a row with these values, by column. Do nothing if a row has its primary key or another unique value."""
    tx.execute(insert_or(tx, table).values(**values).on_conflict_do_nothing())
