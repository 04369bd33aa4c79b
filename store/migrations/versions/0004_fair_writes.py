"""An index that finds the waiting tenants of a limited write."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "ix_actions_fair",
        "actions",
        ["queue", "tenant", "wake_at"],
        unique=False,
        postgresql_where=sa.text("wake_at IS NOT NULL AND limited"),
    )


def downgrade() -> None:
    raise NotImplementedError("migrations are additive; restore a backup instead")
