"""Runs the migrations on the connection that :meth:`omni_jobs.database.database.Database.migrate` hands over.

A revision that has been released is never changed: the next one changes the tables. There is no way back but a backup.
"""

from alembic import context

from omni_jobs.database.seen_tables import SCHEMA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SCHEMA,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
