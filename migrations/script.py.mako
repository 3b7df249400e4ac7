"""${message}

Revision: ${up_revision}
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}
release = ""  # that has it first; a release expands the schema or contracts it
# oldest = "…": which builds may go on with this schema, if not all that may with the one before


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
