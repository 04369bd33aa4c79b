"""Every table of Turnqueue, as SQLAlchemy Core. A test proves that the migrations build exactly this.

Enumerations are text with a CHECK generated from the Python enum, so a state that the code does not know cannot be
stored. `wake_at` is null where nothing is due; `fence` grows with each lease and every result names the one it holds.
"""

from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Numeric,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from orchestrator.domain.action import ActionState
from orchestrator.domain.model import (
    SETTLED_CALLS,
    ApprovalState,
    AttemptState,
    CallState,
    DecisionKind,
    Effect,
    QuestionState,
    Reason,
)
from orchestrator.domain.operation import TERMINAL, OperationState

SCHEMA_VERSION = 1  # stored with each operation; a worker leaves alone what is newer than it knows

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _among(column: str, members: "type[StrEnum] | frozenset[StrEnum]") -> str:
    return f"{column} IN ({', '.join(repr(str(m)) for m in sorted(members))})"


def _time(name: str, *, nullable: bool = True, now: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=func.now() if now else None)


def _count(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default="0")


profiles = Table(
    "profiles",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    _time("created_at", nullable=False, now=True),
)

operations = Table(
    "operations",
    metadata,
    Column("operation_id", Text, primary_key=True),
    Column("schema_version", Integer, nullable=False, server_default=str(SCHEMA_VERSION)),
    Column("tenant", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("profile", Text, nullable=False),
    Column("profile_digest", Text, ForeignKey("profiles.digest"), nullable=False),
    Column("caller_key", Text, nullable=True),  # the caller's idempotency key for the submission itself
    Column("request_sha256", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=True),
    Column("revision", Integer, nullable=False, server_default="1"),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    _time("lease_until"),
    _time("wake_at"),
    _time("deadline", nullable=False),
    _count("turn"),  # model turns begun, the current one included
    _count("asks"),  # failed or lost requests of the current turn
    _count("lost"),  # turns in a row that were claimed and not recorded
    _count("open_calls"),  # calls of the current turn without a result
    _count("open_reads"),  # the plain reads among them
    _count("held_reads"),  # those of them that the parallelism budget still keeps back
    _count("open_inputs"),  # calls among them that wait for the caller's answer
    _count("next_seq"),  # next transcript item
    _count("calls_used"),
    _count("writes_used"),
    Column("input_tokens", BigInteger, nullable=False, server_default="0"),
    Column("output_tokens", BigInteger, nullable=False, server_default="0"),
    Column("cost_usd", Numeric(18, 9), nullable=False, server_default="0"),
    Column("result_bytes", BigInteger, nullable=False, server_default="0"),
    Column("told", Boolean, nullable=False, server_default=text("false")),
    Column("tainted", Boolean, nullable=False, server_default=text("false")),  # the model was shown untrusted text
    Column("parked", Text, nullable=True),  # what failed too often: nothing of it runs until an operator releases it
    Column("last_response_id", Text, nullable=True),
    Column("final_text", Text, nullable=True),
    Column("pending", JSONB, nullable=True),  # terminal record: effects that happened, are unknown, were not started
    _time("created_at", nullable=False, now=True),
    _time("updated_at", nullable=False, now=True),
    _time("ended_at"),
    CheckConstraint(_among("state", OperationState), name="state"),
    CheckConstraint(f"reason IS NULL OR {_among('reason', Reason)}", name="reason"),
    CheckConstraint("(reason IS NOT NULL) = (state IN ('INCOMPLETE', 'FAILED'))", name="reason_state"),
    CheckConstraint(f"(ended_at IS NOT NULL) = ({_among('state', TERMINAL)})", name="ended"),
    CheckConstraint("(lease_until IS NOT NULL) = (state = 'MODEL_REQUESTED')", name="lease"),
    CheckConstraint("wake_at IS NULL OR state IN ('READY', 'RESULTS_READY')", name="wake"),
    CheckConstraint(
        "0 <= held_reads AND held_reads <= open_reads AND 0 <= open_inputs AND open_reads + open_inputs <= open_calls",
        name="open",
    ),
    Index(
        "uq_operations_caller_key", "tenant", "caller_key", unique=True, postgresql_where=text("caller_key IS NOT NULL")
    ),
    Index("ix_operations_due", "wake_at", postgresql_where=text("wake_at IS NOT NULL")),
    Index("ix_operations_lease", "lease_until", postgresql_where=text("lease_until IS NOT NULL")),
    Index("ix_operations_deadline", "deadline", postgresql_where=text("ended_at IS NULL")),
    Index("ix_operations_tenant", "tenant", "created_at"),
)

items = Table(
    "items",
    metadata,
    Column("operation_id", Text, ForeignKey("operations.operation_id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    _time("created_at", nullable=False, now=True),
    PrimaryKeyConstraint("operation_id", "seq"),
    CheckConstraint("kind IN ('user', 'notice', 'reply', 'superseded')", name="kind"),
)

turns = Table(
    "turns",
    metadata,
    Column("operation_id", Text, ForeignKey("operations.operation_id"), nullable=False),
    Column("turn", Integer, nullable=False),
    Column("ask", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("api", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("adapter_revision", Text, nullable=False),
    Column("request_sha256", Text, nullable=False),
    Column("completion", Text, nullable=False),
    Column("raw_reason", Text, nullable=True),
    Column("response_id", Text, nullable=True),
    Column("request_id", Text, nullable=True),
    Column("failure_code", Text, nullable=True),
    Column("input_tokens", BigInteger, nullable=True),
    Column("cached_tokens", BigInteger, nullable=True),
    Column("output_tokens", BigInteger, nullable=True),
    Column("reasoning_tokens", BigInteger, nullable=True),
    Column("cost_usd", Numeric(18, 9), nullable=True),
    Column("seconds", Numeric(12, 6), nullable=False),
    _time("replied_at", nullable=False, now=True),
    PrimaryKeyConstraint("operation_id", "turn", "ask"),
)

actions = Table(
    "actions",
    metadata,
    Column("action_id", Text, primary_key=True),
    Column("operation_id", Text, ForeignKey("operations.operation_id"), nullable=False),
    Column("tenant", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("tool", Text, nullable=False),
    Column("tool_version", Text, nullable=False),
    Column("effect", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("limited", Boolean, nullable=False),
    Column("independent", Boolean, nullable=False),
    Column("arguments", JSONB, nullable=False),
    Column("arguments_sha256", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("digest", Text, nullable=False),  # what an approval is bound to
    Column("policy_version", Text, nullable=False),
    Column("resource_version", Text, nullable=True),
    Column("needs_approval", Boolean, nullable=False, server_default=text("false")),
    Column("replaces", Text, ForeignKey("actions.action_id"), nullable=True),  # a person edited that one into this
    Column("state", Text, nullable=False),
    Column("code", Text, nullable=True),
    Column("evidence", Text, nullable=True),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    _time("lease_until"),
    _time("wake_at"),
    _count("attempts"),
    _count("checks"),  # reconciliations since the outcome was lost
    _count("faults"),  # tries in a row to start or reconcile it of which nothing was recorded
    Column("review", Boolean, nullable=False, server_default=text("false")),  # an operator must settle it
    Column("external_ref", Text, nullable=True),
    Column("observation", Text, nullable=True),
    Column("compensates", Text, ForeignKey("actions.action_id"), nullable=True),  # the action that this one undoes
    _time("started_at"),  # first STARTED: the downstream's retention window counts from here
    _time("settled_at"),
    _time("created_at", nullable=False, now=True),
    UniqueConstraint("idempotency_key"),
    CheckConstraint(_among("state", ActionState), name="state"),
    CheckConstraint(_among("effect", Effect), name="effect"),
    CheckConstraint("(settled_at IS NOT NULL) = (state IN ('SUCCEEDED', 'FAILED', 'REJECTED'))", name="settled"),
    CheckConstraint("(observation IS NOT NULL) = (settled_at IS NOT NULL)", name="observation"),
    CheckConstraint("lease_until IS NULL OR state IN ('STARTED', 'UNKNOWN', 'PENDING')", name="lease"),
    CheckConstraint("state <> 'STARTED' OR lease_until IS NOT NULL", name="started_lease"),
    CheckConstraint("wake_at IS NULL OR state IN ('READY', 'UNKNOWN', 'PENDING')", name="wake"),
    CheckConstraint(
        "started_at IS NOT NULL OR state NOT IN ('STARTED', 'SUCCEEDED', 'UNKNOWN', 'PENDING')", name="started"
    ),
    Index("ix_actions_due", "queue", "wake_at", postgresql_where=text("wake_at IS NOT NULL")),
    Index("ix_actions_fair", "queue", "tenant", "wake_at", postgresql_where=text("wake_at IS NOT NULL AND limited")),
    Index("ix_actions_lease", "lease_until", postgresql_where=text("lease_until IS NOT NULL")),
    Index("ix_actions_operation", "operation_id", "turn"),
)

calls = Table(
    "calls",
    metadata,
    Column("call_key", Text, primary_key=True),  # ours; the provider's call_id alone identifies nothing
    Column("operation_id", Text, ForeignKey("operations.operation_id"), nullable=False),
    Column("tenant", Text, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("response_id", Text, nullable=True),
    Column("call_id", Text, nullable=False),
    Column("tool", Text, nullable=False),
    Column("tool_version", Text, nullable=True),
    Column("effect", Text, nullable=True),  # null where the tool is unknown
    Column("queue", Text, nullable=True),
    Column("limited", Boolean, nullable=False, server_default=text("false")),
    Column("arguments", JSONB, nullable=True),  # null where they do not parse
    Column("arguments_sha256", Text, nullable=False),
    Column("action_id", Text, ForeignKey("actions.action_id"), nullable=True),
    Column("duplicate", Boolean, nullable=False, server_default=text("false")),
    Column("state", Text, nullable=False),
    Column("code", Text, nullable=True),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    _time("lease_until"),
    _time("wake_at"),
    _count("attempts"),
    Column("observation", Text, nullable=True),
    Column("evidence", Text, nullable=True),  # a result that came too late to be shown
    Column("is_error", Boolean, nullable=False, server_default=text("false")),
    Column("binding", JSONB, nullable=True),  # protected: never shown to a model
    Column("binding_sha256", Text, nullable=True),
    _time("started_at"),
    _time("settled_at"),
    _time("created_at", nullable=False, now=True),
    UniqueConstraint("operation_id", "turn", "position"),
    CheckConstraint(_among("state", CallState), name="state"),
    CheckConstraint(f"effect IS NULL OR {_among('effect', Effect)}", name="effect"),
    CheckConstraint(f"(settled_at IS NOT NULL) = ({_among('state', SETTLED_CALLS)})", name="settled"),
    CheckConstraint("(observation IS NOT NULL) = (settled_at IS NOT NULL)", name="one_result"),
    CheckConstraint("(binding_sha256 IS NOT NULL) = (settled_at IS NOT NULL)", name="bound"),
    CheckConstraint("(lease_until IS NOT NULL) = (state = 'RUNNING')", name="lease"),
    CheckConstraint("wake_at IS NULL OR state = 'READY'", name="wake"),
    CheckConstraint("state <> 'WAITING' OR action_id IS NOT NULL OR tool = 'ask_user'", name="waiting"),
    # One result per call: a call id is answered once in its turn, however often the model wrote it.
    Index(
        "uq_calls_call_id",
        "operation_id",
        "turn",
        "call_id",
        unique=True,
        postgresql_where=text("code IS DISTINCT FROM 'DUPLICATE_CALL_ID'"),
    ),
    Index("ix_calls_due", "queue", "wake_at", postgresql_where=text("wake_at IS NOT NULL AND NOT limited")),
    Index("ix_calls_fair", "queue", "tenant", "wake_at", postgresql_where=text("wake_at IS NOT NULL AND limited")),
    Index("ix_calls_lease", "lease_until", postgresql_where=text("lease_until IS NOT NULL")),
    Index("ix_calls_action", "action_id", postgresql_where=text("action_id IS NOT NULL")),
)

attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", Text, primary_key=True),
    Column("operation_id", Text, ForeignKey("operations.operation_id"), nullable=False),
    Column("action_id", Text, ForeignKey("actions.action_id"), nullable=True),
    Column("call_key", Text, ForeignKey("calls.call_key"), nullable=True),
    Column("kind", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("code", Text, nullable=True),
    Column("worker", Text, nullable=False),
    Column("contacted", Boolean, nullable=True),  # whether the external system was contacted; null: not known
    _time("started_at", nullable=False, now=True),
    _time("ended_at"),
    CheckConstraint("kind IN ('execute', 'reconcile')", name="kind"),
    CheckConstraint(_among("state", AttemptState), name="state"),
    CheckConstraint("(action_id IS NULL) <> (call_key IS NULL)", name="subject"),
    CheckConstraint("(ended_at IS NULL) = (state = 'STARTED')", name="ended"),
    Index("uq_attempts_live_action", "action_id", unique=True, postgresql_where=text("state = 'STARTED'")),
    Index("uq_attempts_live_call", "call_key", unique=True, postgresql_where=text("state = 'STARTED'")),
    Index("ix_attempts_operation", "operation_id"),
)

approvals = Table(
    "approvals",
    metadata,
    Column("approval_id", Text, primary_key=True),
    Column("action_id", Text, ForeignKey("actions.action_id"), nullable=False),
    Column("operation_id", Text, ForeignKey("operations.operation_id"), nullable=False),
    Column("tenant", Text, nullable=False),
    Column("requester", Text, nullable=False),
    Column("action_digest", Text, nullable=False),
    Column("tool_version", Text, nullable=False),
    Column("policy_version", Text, nullable=False),
    Column("resource_version", Text, nullable=True),
    Column("approvers", Integer, nullable=False),  # so many different principals
    Column("separate", Boolean, nullable=False),  # none of them the requester
    Column("nonce", Text, nullable=False),
    Column("bound_sha256", Text, nullable=False),  # digest of all of the above and the expiry; a decision names it
    Column("reason", Text, nullable=False),
    Column("state", Text, nullable=False),
    _time("expires_at", nullable=False),
    Column("decided_by", Text, nullable=True),
    Column("decision_reason", Text, nullable=True),
    _time("decided_at"),
    _time("consumed_at"),
    _time("created_at", nullable=False, now=True),
    CheckConstraint(_among("state", ApprovalState), name="state"),
    CheckConstraint("(consumed_at IS NOT NULL) = (state = 'CONSUMED')", name="consumed"),
    CheckConstraint("decided_by IS NOT NULL OR state NOT IN ('APPROVED', 'DENIED', 'CONSUMED')", name="decided"),
    CheckConstraint("approvers >= 1", name="approvers"),
    UniqueConstraint("nonce"),
    Index("uq_approvals_open", "action_id", unique=True, postgresql_where=text("state IN ('PENDING', 'APPROVED')")),
    Index("ix_approvals_expiry", "expires_at", postgresql_where=text("state IN ('PENDING', 'APPROVED')")),
    Index("ix_approvals_operation", "operation_id"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("approval_id", Text, ForeignKey("approvals.approval_id"), nullable=False),
    Column("by", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("bound_sha256", Text, nullable=False),  # what was decided, see approvals
    _time("at", nullable=False, now=True),
    PrimaryKeyConstraint("approval_id", "by"),
    CheckConstraint(_among("decision", DecisionKind), name="decision"),
)

questions = Table(
    "questions",
    metadata,
    Column("question_id", Text, primary_key=True),
    Column("operation_id", Text, ForeignKey("operations.operation_id"), nullable=False),
    Column("tenant", Text, nullable=False),
    Column("call_key", Text, ForeignKey("calls.call_key"), nullable=False),
    Column("text", Text, nullable=False),
    Column("choices", JSONB(none_as_null=True), nullable=True),
    Column("answer_schema", JSONB(none_as_null=True), nullable=True),
    Column("state", Text, nullable=False),
    _time("expires_at", nullable=False),
    Column("answered_by", Text, nullable=True),
    Column("answer", JSONB(none_as_null=True), nullable=True),
    _time("answered_at"),
    _time("created_at", nullable=False, now=True),
    UniqueConstraint("call_key"),
    CheckConstraint(_among("state", QuestionState), name="state"),
    CheckConstraint("(answered_by IS NOT NULL) = (state = 'ANSWERED')", name="answered"),
    CheckConstraint("(answer IS NOT NULL) = (state = 'ANSWERED')", name="answer"),
    Index("ix_questions_expiry", "expires_at", postgresql_where=text("state = 'PENDING'")),
    Index("ix_questions_operation", "operation_id"),
)

slots = Table(
    "slots",
    metadata,
    Column("tool", Text, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("holder", Text, nullable=True),  # call_key or action_id
    Column("tenant", Text, nullable=True),
    Column("fence", BigInteger, nullable=False, server_default="0"),
    _time("lease_until"),  # the attempt's deadline and a grace, not renewed: a dead worker's slot frees itself
    PrimaryKeyConstraint("tool", "slot"),
    CheckConstraint("(holder IS NULL) = (lease_until IS NULL)", name="holder"),
)

audit = Table(
    "audit",
    metadata,
    Column("audit_id", BigInteger, Identity(), primary_key=True),
    Column("operation_id", Text, ForeignKey("operations.operation_id"), nullable=False),
    Column("seq", Integer, nullable=False),  # place in the operation's chain, from 1
    Column("tenant", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject_id", Text, nullable=True),  # call_key, action_id or approval_id
    Column("actor", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    _time("at", nullable=False),
    Column("entry_sha256", Text, nullable=False),  # see orchestrator.domain.chain
    Column("prev_sha256", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    UniqueConstraint("operation_id", "seq"),
    CheckConstraint("seq >= 1", name="seq"),
)

envelopes = Table(
    "envelopes",
    metadata,
    Column("sender", Text, nullable=False),
    Column("nonce", Text, nullable=False),
    Column("operation_id", Text, ForeignKey("operations.operation_id"), nullable=False),
    _time("expires_at", nullable=False),
    _time("created_at", nullable=False, now=True),
    PrimaryKeyConstraint("sender", "nonce"),
)

halts = Table(
    "halts",
    metadata,
    Column("halt_id", BigInteger, Identity(), primary_key=True),
    Column("code", Text, nullable=False),
    Column("detail", Text, nullable=False),
    _time("anchored_at", nullable=False),  # of the newest anchor that was looked at
    _time("created_at", nullable=False, now=True),
    _time("lifted_at"),
    Column("lifted_by", Text, nullable=True),
    Column("reason", Text, nullable=True),
    CheckConstraint(
        "(lifted_at IS NULL) = (lifted_by IS NULL) AND (lifted_at IS NULL) = (reason IS NULL)", name="lifted"
    ),
    Index("uq_halts_open", "code", unique=True, postgresql_where=text("lifted_at IS NULL")),
)

# Append-only tables refuse UPDATE and DELETE; a settled call keeps its result for ever.
TRIGGERS = (
    """
    CREATE FUNCTION turnqueue_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'table % is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
    END $$
    """,
    "CREATE TRIGGER items_append_only BEFORE UPDATE OR DELETE ON items "
    "FOR EACH ROW EXECUTE FUNCTION turnqueue_append_only()",
    "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit "
    "FOR EACH ROW EXECUTE FUNCTION turnqueue_append_only()",
    "CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit "
    "FOR EACH STATEMENT EXECUTE FUNCTION turnqueue_append_only()",
    "CREATE TRIGGER decisions_append_only BEFORE UPDATE OR DELETE ON decisions "
    "FOR EACH ROW EXECUTE FUNCTION turnqueue_append_only()",
    "CREATE TRIGGER calls_one_result BEFORE UPDATE ON calls FOR EACH ROW WHEN (OLD.settled_at IS NOT NULL) "
    "EXECUTE FUNCTION turnqueue_append_only()",
    "CREATE TRIGGER operations_end_once BEFORE UPDATE OF state, reason, ended_at ON operations FOR EACH ROW "
    "WHEN (OLD.ended_at IS NOT NULL) EXECUTE FUNCTION turnqueue_append_only()",
)
