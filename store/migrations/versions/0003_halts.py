"""Halts: while one is open no write starts."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "halts",
        sa.Column("halt_id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("anchored_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("lifted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lifted_by", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(lifted_at IS NULL) = (lifted_by IS NULL) AND (lifted_at IS NULL) = (reason IS NULL)",
            name=op.f("ck_halts_lifted"),
        ),
        sa.PrimaryKeyConstraint("halt_id", name=op.f("pk_halts")),
    )
    op.create_index("uq_halts_open", "halts", ["code"], unique=True, postgresql_where=sa.text("lifted_at IS NULL"))


def downgrade() -> None:
    raise NotImplementedError("migrations are additive; restore a backup instead")
