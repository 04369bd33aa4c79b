"""The nouns of the pure core: frozen values, no I/O, no clock, no randomness."""

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    """What running a tool does to the outside world."""

    READ = "read"  # changes nothing; may be repeated
    OVERWRITE = "overwrite"  # same end state when repeated
    CREATE = "create"  # repeating it makes a second effect

    @property
    def writes(self) -> bool:
        return self is not Effect.READ


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """One tool call as the model wrote it: untrusted. `call_id` is the provider's and identifies nothing by itself."""

    call_id: str
    name: str
    arguments_text: str


class CallState(StrEnum):
    """Where one proposed call stands. READY is set when recorded; everything from SUCCEEDED on is final."""

    READY = "READY"  # a read that may be dispatched once its wake_at has come
    RUNNING = "RUNNING"  # an attempt holds its lease
    WAITING = "WAITING"  # its action decides
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"  # executed, or tried, without the wished result
    REJECTED = "REJECTED"  # never dispatched


SETTLED_CALLS = frozenset({CallState.SUCCEEDED, CallState.FAILED, CallState.REJECTED})


class AttemptState(StrEnum):
    """How one try went; for diagnosis only, nothing is decided by it."""

    STARTED = "STARTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    PENDING = "PENDING"
    UNKNOWN = "UNKNOWN"
    NOT_SENT = "NOT_SENT"
    LOST = "LOST"  # its worker's lease expired


class ApprovalState(StrEnum):
    """One person's decision on one exact action digest; CONSUMED in the transaction that starts the action."""

    PENDING = "PENDING"
    APPROVED = "APPROVED"
    DENIED = "DENIED"
    EXPIRED = "EXPIRED"
    REVOKED = "REVOKED"  # its operation ended or was corrected first, or a person edited the action
    CONSUMED = "CONSUMED"


class DecisionKind(StrEnum):
    """What one person said about an approval."""

    APPROVE = "APPROVE"
    DENY = "DENY"
    EDIT = "EDIT"  # approved with other arguments: another action with an approval of its own takes its place


class QuestionState(StrEnum):
    """Where a question of the model to the caller stands."""

    PENDING = "PENDING"
    ANSWERED = "ANSWERED"
    EXPIRED = "EXPIRED"  # which ended its operation
    REVOKED = "REVOKED"  # its operation ended or was corrected first


@dataclass(frozen=True, slots=True)
class Outstanding:
    """What a turn still waits for. `running` counts work that needs no person and no evidence to go on."""

    running: int = 0
    uncertain: int = 0
    approvals: int = 0
    inputs: int = 0


class Parked(StrEnum):
    """What of a parked operation failed too often. Stored: only ever add."""

    TURN = "POISON_TURN"  # its workers died of its turn, or taking the turn raised what nobody foresaw
    WRITE = "POISON_WRITE"  # the same before a write was started
    REPAIR = "POISON_REPAIR"  # the sweeper could not repair a row of it


class Reason(StrEnum):
    """Why an operation ended INCOMPLETE or FAILED. Stored: only ever add."""

    TRUNCATED = "TRUNCATED"
    TURN_BUDGET = "TURN_BUDGET"
    CALL_BUDGET = "CALL_BUDGET"
    WRITE_BUDGET = "WRITE_BUDGET"
    TOKEN_BUDGET = "TOKEN_BUDGET"  # noqa: S105 - a budget, not a secret
    COST_BUDGET = "COST_BUDGET"
    RESULT_BUDGET = "RESULT_BUDGET"
    DEADLINE = "DEADLINE"
    NO_PROGRESS = "NO_PROGRESS"
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED"
    INPUT_EXPIRED = "INPUT_EXPIRED"
    UNCONFIRMED = "UNCONFIRMED"
    OUTPUT_INVALID = "OUTPUT_INVALID"
    PROVIDER_AUTH = "PROVIDER_AUTH"
    PROVIDER_CONFIG = "PROVIDER_CONFIG"
    PROVIDER_UNAVAILABLE = "PROVIDER_UNAVAILABLE"
    PROTOCOL = "PROTOCOL"
    INTERNAL = "INTERNAL"


FAILED_REASONS = frozenset(
    {
        Reason.PROVIDER_AUTH,
        Reason.PROVIDER_CONFIG,
        Reason.PROVIDER_UNAVAILABLE,
        Reason.PROTOCOL,
        Reason.INTERNAL,
    }
)
INCOMPLETE_REASONS = frozenset(Reason) - FAILED_REASONS
