"""``insert_unless_there``: the SQL insert of a row whose key may be taken already."""

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite


def insert_unless_there(tx: Connection, table: Any, **values: Any) -> None:
    """Insert a row with these values, by column. Do nothing if a row has its primary key or another unique value."""
    insert = postgresql.insert if tx.dialect.name == "postgresql" else sqlite.insert
    tx.execute(insert(table).values(**values).on_conflict_do_nothing())
