"""Runs the migrations on the connection that :meth:`omni_jobs.db.Database.migrate` hands over."""

from __future__ import annotations

from alembic import context

from omni_jobs.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
