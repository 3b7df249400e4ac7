"""The schema's revisions, applied with Alembic for ``Database.migrate``. Import it only to migrate: it is slow."""

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from omni_jobs.errors import ConfigError
from omni_jobs.settings import packaged_directory


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the schema forward to a revision (default: this build's) in the connection's transaction.

    Raises ConfigError for a schema that this build does not know: a newer build has made it.
    """
    try:
        command.upgrade(_config(connection), revision)
    except CommandError as error:
        message = f"this version of omni-jobs cannot migrate the database, which a newer one has migrated: {error}"
        raise ConfigError(message, field="database_url") from error


def downgrade(connection: Connection, revision: str) -> None:
    """Bring the schema back to an older revision, or to ``base`` (no tables), in the connection's transaction."""
    command.downgrade(_config(connection), revision)


def newest_revision() -> str | None:
    """Return the revision of the last file in ``migrations``, which ``database.REVISION`` must equal."""
    return ScriptDirectory.from_config(_config(None)).get_current_head()


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(packaged_directory("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
