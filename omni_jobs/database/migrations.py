"""The schema's revisions, applied with Alembic for ``Database.migrate``. Import it only to migrate: it is slow."""

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from omni_jobs.errors import ConfigError
from omni_jobs.settings import packaged_directory


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the schema forward to a revision (default: this build's) in the connection's transaction.

    Raises ConfigError for a schema that this build does not know.
    """
    config = Config()
    config.set_main_option("script_location", str(packaged_directory("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, revision)
    except CommandError as error:
        message = (
            "this version of omni-jobs cannot migrate the database: a newer one has, or one from before the first "
            f"release. Run that version, or this one with an empty database ({error})"
        )
        raise ConfigError(message, field="database_url") from error
