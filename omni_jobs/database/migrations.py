"""The schema's revisions, the files in ``migrations/versions``. Import it only to migrate: Alembic is slow.

Each revision is a transaction of its own, so that a process that is killed leaves the schema of one revision, and
locks are held for one alone. A revision belongs to a release, and a release either expands the schema or contracts it:
so processes of the release before go on while it is migrated, and may be started anew.

Which builds may work on a schema, its revisions say: one that takes away what older builds use names as ``oldest`` the
revision that a build has to know to go on. So does one by whose rows older builds would do harm, such as a new column
that refers to objects, because their sweep deletes objects to which no row refers that they know. The table
``oldest_builds`` keeps it for builds to which the schema's revision is unknown.
"""

import re
import threading
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, delete, insert

from omni_jobs.database.seen_tables import SCHEMA, OldestBuildRow
from omni_jobs.errors import ConfigError
from omni_jobs.settings import packaged_directory

_one_at_a_time = threading.Lock()  # the operations that revisions import lead to one context in a process
_ALEMBICS = re.compile(r"(BEGIN|COMMIT)\b|--|(CREATE TABLE|UPDATE|INSERT INTO|DELETE FROM) alembic_version\b")


class Revision(NamedTuple):
    """A revision of the schema: its number, the release that has it first, and in a line what it is for."""

    number: str
    release: str
    purpose: str
    can_be_undone: bool
    made_again: frozenset[str]  # tables that are made of others, so that nothing is lost with them
    oldest: str | None  # the revision whose build is the oldest that may work on this schema; None: as before it


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(packaged_directory("migrations")))


@cache
def revisions() -> Sequence[Revision]:
    """Return all revisions that this build knows, the oldest first."""
    return [_revision(script) for script in _scripts().walk_revisions()][::-1]


def _revision(script: Script) -> Revision:
    module = script.module
    made_again = frozenset(getattr(module, "made_again", ()))
    oldest = getattr(module, "oldest", None)
    return Revision(script.revision, module.release, script.doc, hasattr(module, "downgrade"), made_again, oldest)


def number_of(revision: str | None) -> int:
    """Return how many revisions lead to this one, itself included; 0 for None, an empty database.

    Raises ConfigError for one that this build does not know.
    """
    if revision is None:
        return 0
    for number, each in enumerate(revisions(), 1):
        if each.number == revision:
            return number
    raise ConfigError(
        "this version of omni-jobs cannot migrate the database: a newer one has, or one from before the first release. "
        f"Run that version, or this one with an empty database (its schema is {revision!r})",
        field="database_url",
    )


def oldest_build(revision: str) -> Revision | None:
    """Return the revision whose build is the oldest that may work on a schema; None: one that tells no build."""
    stated = [each.oldest for each in revisions()[: number_of(revision)] if each.oldest is not None]
    return revisions()[number_of(stated[-1]) - 1] if stated else None


def between(current: str | None, target: str) -> Sequence[Revision]:
    """Return the revisions to take from one to the other, forward or back, in order. Raises ConfigError."""
    start, stop = number_of(current), number_of(target)
    return revisions()[start:stop] if start <= stop else revisions()[stop:start][::-1]


def take_step(connection: Connection, target: str) -> Revision | None:
    """Take the next revision on the way to ``target``, forward or back, commit, and return it; None: it is there.

    ``connection`` has begun no transaction. Raises ConfigError for a schema that this build does not know.
    """
    taken: list[Revision] = []

    def next_step(heads: Sequence[str], _: MigrationContext) -> Iterable[RevisionStep]:
        current = heads[0] if heads else None
        taken.extend(between(current, target)[:1])
        return _steps(current, target)[:1]

    _run(MigrationContext.configure(connection, opts=_options(next_step) | {"on_version_apply": [_tell_builds]}))
    return taken[0] if taken else None


def _tell_builds(*, ctx: MigrationContext, heads: Collection[str], **_: object) -> None:
    """Write the oldest build that may work on the schema, in the transaction of its revision."""
    [revision] = heads
    oldest, connection = oldest_build(revision), ctx.connection
    if oldest is None or connection is None:
        return
    connection.execute(delete(OldestBuildRow))
    connection.execute(insert(OldestBuildRow).values(revision=oldest.number, release=oldest.release))


def statements(dialect: str, revision: Revision, *, back: bool) -> list[str]:
    """Return the SQL by which a revision is made, or undone, on a database that nobody needs to have."""
    written = _Written()
    before = revisions()[number_of(revision.number) - 2].number if number_of(revision.number) > 1 else None
    current, target = (revision.number, before) if back else (before, revision.number)
    if target is None:
        raise ConfigError(f"revision {revision.number} is the first", field="revision")
    options = _options(lambda heads, context: _steps(current, target))
    options |= {"as_sql": True, "starting_rev": current, "output_buffer": written}
    _run(MigrationContext.configure(dialect_name=dialect, opts=options))
    return [text for text in written.texts if not _ALEMBICS.match(text)]


def _steps(current: str | None, target: str) -> list[RevisionStep]:
    if number_of(current) <= number_of(target):
        return list(_scripts()._upgrade_revs(target, current or "base"))
    return list(_scripts()._downgrade_revs(target, current))


def _options(fn: Any) -> dict[str, Any]:
    return {"fn": fn, "target_metadata": SCHEMA, "transactional_ddl": True, "transaction_per_migration": True}


def _run(context: MigrationContext) -> None:
    with _one_at_a_time, Operations.context(context):
        context.run_migrations()


class _Written:
    """What Alembic writes SQL to, a statement at a time."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        if plain := " ".join(text.split()).removesuffix(";"):
            self.texts.append(plain)

    def flush(self) -> None:
        """Do nothing: all is kept."""
