"""The command that changes the database's schema, or says what it would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from omni_jobs.cli import options
from omni_jobs.cli.exits import Exit
from omni_jobs.cli.servers import opened_database
from omni_jobs.cli.terminal import console, say, say_json

if TYPE_CHECKING:
    from rich.table import Table

    from omni_jobs.database.database import Database
    from omni_jobs.database.schema_plan import PlannedRevision, SchemaChange, SchemaPlan


def migrate(
    check: options.CheckOption = False,
    down: options.DownOption = False,
    to: options.ToOption = None,
    lose: options.LoseOption = None,
    runs_as: options.RunsAsOption = None,
    as_json: options.MigrateJsonOption = False,
) -> None:
    """Bring the database to this version's schema. Safe to run twice, and on several hosts at once.

    A newer version's schema stays as it is where this version may work on it, and is an error where it may not.

    --check only reads: it shows the revisions that would be made, what each changes, the locks that it holds, the rows
    of the tables that it touches, and about how long that takes. One that was killed goes on where it was.

    --down goes back to the schema of the release before. Stop the processes of this version first. It refuses what
    cannot be undone, and what would lose data that no --lose names.

    --runs-as lets the processes run as a role of PostgreSQL that cannot change the schema, while this command connects
    as the owner. Without it, the role keeps its rights, also to new tables.

    \b
    Examples:
      OMNI_JOBS_DATABASE_URL=postgresql://… omni-jobs migrate     # before the first start, and after an update
      omni-jobs migrate --check --json
      omni-jobs migrate --down --to 0018 --lose actions.stopped_by
      OMNI_JOBS_DATABASE_URL_FILE=owner_url omni-jobs migrate --runs-as database_url
    """
    if as_json and not check:
        raise typer.BadParameter("only --check prints JSON", param_hint="--json")
    if (to or lose) and not down:
        raise typer.BadParameter("only with --down", param_hint="--to, --lose")
    if runs_as is not None and (check or down):
        raise typer.BadParameter("not with --check or --down", param_hint="--runs-as")
    from omni_jobs.settings import read_secret

    runs_url = None if runs_as is None else read_secret("--runs-as", str(runs_as))
    with opened_database(check=False) as database:
        target = _target(database, to, down=down)
        if check:
            _show(database, target, as_json)
            return
        if down:
            from omni_jobs.database.schema_plan import check_way_back

            check_way_back(database, target, lose or ())
        database.migrate(target, on_taken=lambda revision: say(f"{revision} {'undone' if down else 'made'}", err=True))
        if runs_url is not None:
            database.let_run(runs_url)
        is_ahead = not down and database.is_ahead()
        revision = database.revision()
    if is_ahead:
        say(_ahead(revision))
    else:
        say(f"the database has the schema {target}" if down else "the database is up to date")


def _target(database: Database, to: str | None, *, down: bool) -> str:
    from omni_jobs.database.database import REVISION

    if not down:
        return REVISION
    from omni_jobs.database.migrations import number_of
    from omni_jobs.database.schema_plan import revision_of_the_release_before
    from omni_jobs.errors import ConfigError

    current = database.revision()
    number = number_of(current)
    if to is None:
        return revision_of_the_release_before(current)
    try:
        wanted = number_of(to)
    except ConfigError:
        raise typer.BadParameter(f"{to!r} is no revision of the schema", param_hint="--to") from None
    if wanted > number:
        raise typer.BadParameter(f"the schema is {current or 'empty'}, which is before {to}", param_hint="--to")
    return to


def _show(database: Database, target: str, as_json: bool) -> None:
    """Print the way to a revision, and end with Exit.TO_DO unless there is none to go."""
    from omni_jobs.database.schema_plan import plan

    found = plan(database, target)
    if as_json:
        import json

        say_json(json.dumps(_as_json(found), indent=2))
    elif found.revisions:
        console().print(_table(found))
        say(f"{len(found.revisions)} revisions from {found.current or 'an empty database'}: about {found.estimate_s} s")
        if found.current is not None and found.oldest is not None:
            say(
                f"versions that know {found.oldest} or newer work on the schema {found.target}, older ones do not start"
            )
    elif found.current is not None and found.current > found.target:
        say(_ahead(found.current))
    else:
        say("the database is up to date")
    if found.revisions:
        raise typer.Exit(Exit.TO_DO)


def _ahead(revision: str | None) -> str:
    return f"the database has the schema {revision} of a newer version, on which this one works: there is nothing to do"


def _as_json(found: SchemaPlan) -> dict[str, object]:
    each = [
        {**revision._asdict(), "changes": [change._asdict() for change in revision.changes]}
        for revision in found.revisions
    ]
    return {**found._asdict(), "revisions": each}


def _table(found: SchemaPlan) -> Table:
    from omni_jobs.cli.tables import table_of

    table = table_of("revision", "release", "changes", "locks", "rows", "about")
    for each in found.revisions:
        words = [_words(change) for change in each.changes]
        locks = dict.fromkeys(change.lock for change in each.changes if change.lock)
        about = f"{each.estimate_s} s"
        table.add_row(each.revision, each.release, "\n".join(words), "\n".join(locks) or "none", _rows(each), about)
    return table


def _words(change: SchemaChange) -> str:
    verb, _, what = change.kind.partition("_")
    place = change.table if change.of is None or what == "" else f"{change.table}.{change.of}"
    return f"{verb} {what} {place}" if what else f"{verb} {place}" + (f" from {change.of}" if change.of else "")


def _rows(each: PlannedRevision) -> str:
    return "\n".join(f"{name}: {count:,}" for name, count in each.rows.items())
