"""Operations that are parked for an operator, and how often an action failed unexpectedly."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("operations", sa.Column("parked", sa.Text(), nullable=True))
    op.add_column("actions", sa.Column("faults", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    raise NotImplementedError("migrations are additive; restore a backup instead")
