"""The role of PostgreSQL by which the processes run: it works with rows, and changes no schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, exc, make_url, text

from omni_jobs.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Connection

_ROWS: Final = "SELECT, INSERT, UPDATE, DELETE"
_NEXT_IDS: Final = "SELECT, USAGE"
_ABOUT_ME: Final = text(
    "SELECT current_user, current_database(), current_schema(), rolsuper OR rolcreaterole "
    "FROM pg_roles WHERE rolname = current_user"
)
_ABOUT_ROLE: Final = text(
    "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR pg_has_role(oid, current_user, 'MEMBER') "
    "FROM pg_roles WHERE rolname = :role"
)
_WHICH: Final = text("SELECT current_database(), pg_postmaster_start_time()")
_MAY_CREATE: Final = text("SELECT has_schema_privilege(:role, :schema, 'CREATE')")


def read_role(url: str) -> URL:
    """Return the URL by which the processes will connect, once it is checked. Raises ConfigError, without the URL."""
    try:
        found = make_url(url)
    except (exc.ArgumentError, ValueError):
        raise ConfigError("holds no database URL", field="--runs-as") from None
    if found.get_backend_name() not in ("postgresql", "postgres") or not found.username:
        raise ConfigError("holds no URL postgresql://ROLE:PASSWORD@HOST/DATABASE", field="--runs-as")
    return found


def which_database(tx: Connection) -> tuple[Any, ...]:
    """Return what tells a database from all others: its name, and the moment at which its server was started."""
    return tuple(tx.execute(_WHICH).one())


def check_same_database(ours: tuple[Any, ...], our_url: URL, theirs: tuple[Any, ...] | None, their_url: URL) -> None:
    """Raise ConfigError, without passwords, if the processes' URL leads to another database than the owner's.

    ``ours`` and ``theirs`` are what ``which_database`` returns by each URL; None: nobody is let in by it yet. Then the
    name alone counts, because a pooler, or another name of the host, leads to the same database.
    """
    is_same = ours == theirs if theirs is not None else their_url.database in (None, ours[0])
    if not is_same:
        raise ConfigError(
            f"holds the URL of {_place(their_url)}, and the database that was migrated is {_place(our_url)}: "
            "the processes need a URL of the same database",
            field="--runs-as",
        )


def _place(url: URL) -> str:
    return str(URL.create("postgresql", host=url.host, port=url.port, database=url.database))


def grant_rows(tx: Connection, url: URL) -> None:
    """Let the role of ``url`` work with the rows of all tables, those of later migrations too, and do nothing else.

    ``tx`` is a transaction of the owner. A role that is not there is made, and has the URL's password after it, where
    the owner may make roles. Raises ConfigError for a role that could change the schema in another way.
    """
    role = str(url.username)
    me, database, schema, makes_roles = tx.execute(_ABOUT_ME).one()
    if role == me:
        raise ConfigError(f"names {role}, the role that migrates: the processes need another", field="--runs-as")
    about = tx.execute(_ABOUT_ROLE, {"role": role}).one_or_none()
    if about is None and not makes_roles:
        raise ConfigError(
            f"there is no role {role}, and {me} may make none: CREATE ROLE {role} LOGIN PASSWORD '…', "
            "then run it again",
            field="--runs-as",
        )
    if about is not None and about[0]:
        raise ConfigError(
            f"{role} may do more than work with rows: it is a superuser, makes roles or databases, or belongs to {me}. "
            "Give the processes a role of their own",
            field="--runs-as",
        )
    quoted = tx.dialect.identifier_preparer.quote_identifier
    to, place = quoted(role), quoted(schema)
    if about is None:
        tx.exec_driver_sql(f"CREATE ROLE {to} LOGIN")
    if makes_roles and url.password:
        tx.exec_driver_sql(f"ALTER ROLE {to} PASSWORD '{_stored_password(tx, role, str(url.password))}'")
    for statement in (
        f"REVOKE ALL ON ALL TABLES IN SCHEMA {place} FROM {to}",
        f"GRANT CONNECT ON DATABASE {quoted(database)} TO {to}",
        f"GRANT USAGE ON SCHEMA {place} TO {to}",
        f"GRANT {_ROWS} ON ALL TABLES IN SCHEMA {place} TO {to}",
        f"GRANT {_NEXT_IDS} ON ALL SEQUENCES IN SCHEMA {place} TO {to}",
        f"REVOKE INSERT, UPDATE, DELETE ON alembic_version, oldest_builds FROM {to}",
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {place} GRANT {_ROWS} ON TABLES TO {to}",
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {place} GRANT {_NEXT_IDS} ON SEQUENCES TO {to}",
    ):
        tx.exec_driver_sql(statement)
    if tx.execute(_MAY_CREATE, {"role": role, "schema": schema}).scalar_one():
        raise ConfigError(
            f"{role} may make tables, as every role may here: "
            f"REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC, then run it again",
            field="--runs-as",
        )


def _stored_password(tx: Connection, role: str, password: str) -> str:
    """Return a password in the form that the server stores, which has no quotes: the server may log statements."""
    raw: Any = tx.connection.dbapi_connection
    stored: bytes = raw.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256")
    return stored.decode()
