"""Alembic's entry point: runs on the connection that `store.migrate` hands over."""

from alembic import context

from store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, transaction_per_migration=True
)
with context.begin_transaction():
    context.run_migrations()
