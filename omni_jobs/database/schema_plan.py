"""What the revisions would do that lie between a database and a schema: changes, locks, rows, time; and what is lost.

It is read from the SQL that the revisions write without a database. Import it only to migrate: it is slow.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from omni_jobs.database.database import REVISION, Database
from omni_jobs.database.migrations import Revision, between, number_of, oldest_build, revisions, statements
from omni_jobs.errors import ConfigError, Conflict

_NAME = r'"?(\w+)"?'
_TABLE = r'"?(?P<table>\w+)"?'
_PATTERNS: Final = (
    ("add_table", rf"CREATE TABLE {_TABLE}"),
    ("add_index", rf"CREATE (?:UNIQUE )?INDEX (?:CONCURRENTLY )?(?:IF NOT EXISTS )?(?P<of>\w+) ON {_TABLE}"),
    ("add_reference", rf"ALTER TABLE {_TABLE} ADD CONSTRAINT (?P<of>\w+) FOREIGN KEY"),
    ("check_reference", rf"ALTER TABLE {_TABLE} VALIDATE CONSTRAINT (?P<of>\w+)"),
    ("delete", rf"DELETE FROM {_TABLE}"),  # noqa: S608
    ("add_column", rf'ALTER TABLE {_TABLE} ADD COLUMN (?:IF NOT EXISTS )?"?(?P<of>\w+)"?'),
    ("drop_column", rf'ALTER TABLE {_TABLE} DROP COLUMN "?(?P<of>\w+)"?'),
    ("drop_index", rf"DROP INDEX (?:CONCURRENTLY )?(?:IF EXISTS )?{_TABLE}"),
    ("drop_table", rf"DROP TABLE {_TABLE}"),
    ("copy_table", rf"ALTER TABLE _alembic_tmp_\w+ RENAME TO {_TABLE}"),
    ("fill", rf"INSERT INTO {_TABLE} .*\bFROM (?P<of>\w+)"),
    ("fill", rf"INSERT INTO {_TABLE}"),
    ("fill", rf"UPDATE {_TABLE}"),
)
_CONTRACTS: Final = frozenset({"drop_column", "drop_table", "restrict", "other"})
_BETWEEN_S: Final = 0.05  # of a revision that only adds a table or a column
# Seconds for a million rows, as ``python -m benchmarks.migrations`` measures them on two cores.
_S_PER_MILLION: Final = {
    "sqlite": {"add_index": 1.2, "copy_table": 1.5, "fill": 10.0, "drop_column": 2.5},
    "postgresql": {"add_index": 1.2, "fill": 20.0, "check_reference": 1.0},
}


class Direction(StrEnum):
    """Whether a revision adds what processes of the release before do not know, or takes away what they use."""

    EXPANDS = "expands"
    CONTRACTS = "contracts"


class SchemaChange(NamedTuple):
    """A change of a table: the kind (add_table, add_column, …), the table, and the column, the index or the source."""

    kind: str
    table: str
    of: str | None
    lock: str  # that it holds until the revision is made, and on what; "": none that a live stack waits for


class PlannedRevision(NamedTuple):
    """A revision that a migration would take, its changes, the rows of the tables that it touches, and the time."""

    revision: str
    release: str
    purpose: str
    changes: Sequence[SchemaChange]
    rows: dict[str, int]  # by table, of those that are there now
    estimate_s: float


class SchemaPlan(NamedTuple):
    """The way from a database's schema to another: the revisions in order, of which some may be undone."""

    current: str | None
    target: str
    oldest: str | None  # the revision whose build is the oldest that may work on the target; None: it tells none
    revisions: Sequence[PlannedRevision]
    estimate_s: float


@cache
def changes(dialect: str, revision: Revision, *, back: bool = False) -> Sequence[SchemaChange]:
    """Return what a revision changes as it is made, or as it is undone."""
    written = statements(dialect, revision, back=back)
    made = {match[1] for text in written if (match := re.match(rf"CREATE TABLE {_NAME}", text))}
    found = [_change(dialect, statement, made) for statement in written]
    copied = {change.table for change in found if change.kind == "copy_table"}
    return [
        change
        for change in found
        if not change.table.startswith("_alembic_tmp_") and not (change.kind == "drop_table" and change.table in copied)
    ]


def _parsed(statement: str) -> tuple[str, str, str | None]:
    """Return a change's kind, its table, and the column, index or source."""
    for kind, pattern in _PATTERNS:
        if match := re.match(pattern, statement, re.DOTALL):
            return kind, match["table"], match.groupdict().get("of")
    return "other", statement[:60], None


def _change(dialect: str, statement: str, made: Collection[str]) -> SchemaChange:
    kind, table, of = _parsed(statement)
    # Processes of the release before write rows that would break it.
    is_strict = kind == "add_column" and "NOT NULL" in statement and "DEFAULT" not in statement
    is_strict = is_strict or kind == "add_reference" or statement.startswith("CREATE UNIQUE INDEX")
    if is_strict and table not in made:
        kind = "restrict"
    return SchemaChange(kind, table, of, _lock(dialect, kind, table, statement, made))


def _lock(dialect: str, kind: str, table: str, statement: str, made: Collection[str]) -> str:
    if dialect == "sqlite":
        return "writes to the file"
    if kind in ("add_table", "add_reference"):
        referred = sorted(set(re.findall(rf"REFERENCES {_NAME}", statement)) - {table, *made})
        return ", ".join(f"SHARE ROW EXCLUSIVE on {each}" for each in referred)
    if table in made or "CONCURRENTLY" in statement or kind in ("fill", "delete", "check_reference"):
        return ""
    if kind == "drop_index":
        return f"ACCESS EXCLUSIVE on the table of {table}"
    return f"{'SHARE' if kind == 'add_index' else 'ACCESS EXCLUSIVE'} on {table}"


def direction(revision: Revision) -> Direction | None:
    """Return what a revision does to processes of the release before; None: neither.

    Raises ConfigError if it does both, and if it contracts and does not say which builds may go on.
    """
    kinds = {change.kind for change in changes("postgresql", revision)}
    adds, takes = kinds & {"add_table", "add_column"}, kinds & _CONTRACTS
    if adds and takes:
        raise ConfigError(f"revision {revision.number} expands the schema and contracts it", field="revision")
    if takes and revision.oldest is None:
        raise ConfigError(
            f"revision {revision.number} contracts the schema: its oldest says which builds may go on", field="oldest"
        )
    return Direction.EXPANDS if adds else Direction.CONTRACTS if takes else None


# Of a database


def plan(database: Database, target: str = REVISION) -> SchemaPlan:
    """Return what it takes to bring a database to a revision. It reads, and counts the rows of the tables touched.

    To bring it to this build's takes nothing where it is ahead. Raises DatabaseUnavailable, and ConfigError for the
    schema of a newer build on which this one may not work.
    """
    current = database.revision()
    if target == REVISION and database.is_ahead():
        return SchemaPlan(current, target, None, [], 0.0)
    steps = between(current, target)
    back = number_of(current) > number_of(target)
    of_each = {step: changes(database.dialect, step, back=back) for step in steps}
    touched = {name for each in of_each.values() for change in each for name in (change.table, change.of) if name}
    rows = _rows(database, touched) if steps and current is not None else {}
    planned = [_planned(database.dialect, step, each, rows) for step, each in of_each.items()]
    oldest = oldest_build(target)
    estimate_s = round(sum(each.estimate_s for each in planned), 1)
    return SchemaPlan(current, target, None if oldest is None else oldest.number, planned, estimate_s)


def _planned(dialect: str, step: Revision, found: Sequence[SchemaChange], rows: dict[str, int]) -> PlannedRevision:
    rates, estimate_s = _S_PER_MILLION[dialect], _BETWEEN_S
    for change in found:
        source = change.of if change.kind == "fill" and change.of in rows else change.table
        estimate_s += rows.get(source or "", 0) / 1e6 * rates.get(change.kind, 0.0)
    names = sorted({name for change in found for name in (change.table, change.of) if name in rows})
    its_rows = {name: rows[name] for name in names if name is not None}
    return PlannedRevision(step.number, step.release, step.purpose, found, its_rows, round(estimate_s, 2))


def _rows(database: Database, names: Collection[str]) -> dict[str, int]:
    """Return the number of rows of those of these names that are tables."""

    def query(tx: Connection) -> dict[str, int]:
        there = sorted(database.table_names(tx) & set(names))
        return {name: tx.execute(text(f'SELECT count(*) FROM "{name}"')).scalar_one() for name in there}  # noqa: S608

    return database.read(query)


# Back


def revision_of_the_release_before(current: str | None) -> str:
    """Return the last revision of the release before that of a schema. Raises Conflict if there is none."""
    taken = revisions()[: number_of(current)]
    earlier = [each for each in taken if each.release != taken[-1].release]
    if not earlier:
        release = taken[-1].release if taken else "none"
        raise Conflict(
            f"the schema is that of {release}, and no release came before it. Name a revision of a build between "
            "releases with --to; that build's omni-jobs migrate --check --json says which is its own"
        )
    return earlier[-1].number


def check_way_back(database: Database, target: str, lose: Collection[str]) -> None:
    """Raise Conflict if a revision on the way back cannot be undone, or would lose data that ``lose`` does not name.

    ``lose``: tables, and columns as TABLE.COLUMN. What is empty is not lost, nor what an upgrade makes again.
    """
    steps = between(database.revision(), target)
    for step in steps:
        if not step.can_be_undone:
            raise Conflict(f"revision {step.number} cannot be undone ({step.purpose}): restore a backup")
    lost = [name for step in steps for name in _lost(database, step) if name not in lose]
    if lost:
        named = " ".join(f"--lose {name}" for name in lost)
        raise Conflict(f"these hold data, which would be lost: {', '.join(lost)}. To lose it, say {named}")


def _lost(database: Database, step: Revision) -> Iterator[str]:
    for change in changes(database.dialect, step, back=True):
        if change.kind == "drop_table" and change.table not in step.made_again:
            name, query = change.table, f'SELECT EXISTS (SELECT 1 FROM "{change.table}")'  # noqa: S608
        elif change.kind == "drop_column":
            name = f"{change.table}.{change.of}"
            query = f'SELECT EXISTS (SELECT 1 FROM "{change.table}" WHERE "{change.of}" IS NOT NULL)'  # noqa: S608
        else:
            continue
        if database.read(lambda tx, query=query: tx.execute(text(query)).scalar_one()):  # type: ignore[misc]
            yield name
