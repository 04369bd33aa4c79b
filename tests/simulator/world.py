"""What a history is about: rows as the store keeps them, a virtual clock, and a downstream with a ledger of its own."""

import heapq
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from orchestrator.domain.action import ActionState
from orchestrator.domain.model import ApprovalState, AttemptState, CallState, Reason
from orchestrator.domain.operation import OperationState

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = 15.0  # seconds, as the settings have it
SWEEP = 5.0
TIMEOUT = 10.0  # of one tool request
WALL = 300.0  # budget of an operation
APPROVAL_TTL = 60.0
RETENTION = timedelta(days=1)  # of the downstream's keys; far beyond an operation's wall clock
MAX_ATTEMPTS = 3
CHECK_LIMIT = 4
LOST_LIMIT = 5
ASK_LIMIT = 6
TURNS = 4

Process = Generator[float, None, None]  # yields how long its next step takes, in seconds


@dataclass(slots=True)
class Operation:
    operation_id: str
    deadline: datetime
    wake_at: datetime | None
    state: OperationState = OperationState.READY
    reason: Reason | None = None
    fence: int = 0
    lease_until: datetime | None = None
    turn: int = 0
    lost: int = 0
    asks: int = 0
    told: bool = False
    ended_at: datetime | None = None
    unresolved_at_end: bool = False


@dataclass(slots=True)
class Call:
    """A proposed call: a read when `action` is None."""

    call_key: str
    operation: Operation
    turn: int
    state: CallState
    action: "Action | None" = None
    wake_at: datetime | None = None
    fence: int = 0
    attempts: int = 0
    lease_until: datetime | None = None
    settled: int = 0


@dataclass(frozen=True, slots=True)
class Tool:
    """What the host says about a write, and what is true of its downstream."""

    keyed: bool  # the downstream enforces the idempotency key
    overwrite: bool  # repeating it leaves the same end state
    independent: bool
    approval: bool
    reconcile: bool


@dataclass(slots=True)
class Approval:
    digest: int
    expires_at: datetime
    state: ApprovalState = ApprovalState.PENDING
    consumed: int = 0


@dataclass(slots=True)
class Attempt:
    number: int
    fence: int
    digest: int
    started_at: datetime
    operation_live: bool
    approved: bool
    state: AttemptState = AttemptState.STARTED


@dataclass(slots=True)
class Action:
    action_id: str
    operation: Operation
    turn: int
    tool: Tool
    digest: int
    state: ActionState = ActionState.PROPOSED
    approval: Approval | None = None
    wake_at: datetime | None = None
    fence: int = 0
    attempts: int = 0
    checks: int = 0
    lease_until: datetime | None = None
    started_at: datetime | None = None
    review: bool = False
    tries: list[Attempt] = field(default_factory=list)

    def may_have_arrived(self) -> bool:
        harmless = (AttemptState.NOT_SENT, AttemptState.FAILED)
        return any(attempt.state not in harmless for attempt in self.tries)


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of the downstream's ledger, which has no unique key."""

    action_id: str
    digest: int
    at: datetime


class Downstream:
    """Applies, refuses or accepts; hides a record for a while; remembers the keys where it enforces them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.ledger: list[Effect] = []
        self._memory: dict[str, str] = {}
        self._hidden: dict[str, datetime] = {}

    def arrive(self, action: Action, digest: int, now: datetime) -> str:
        """The request is there: "applied", "refused" or "accepted" (applied later, or never)."""
        key = action.action_id
        if action.tool.keyed and key in self._memory:
            return self._memory[key]
        answer = self._rng.choices(("applied", "refused", "accepted"), (70, 20, 10))[0]
        if answer == "applied" or (answer == "accepted" and self._rng.random() < 0.7):
            self.ledger.append(Effect(key, digest, now))
            if self._rng.random() < 0.2:
                self._hidden[key] = now + timedelta(seconds=self._rng.uniform(0, 40))
        if action.tool.keyed:
            self._memory[key] = answer
        return answer

    def look_up(self, action: Action, now: datetime) -> str:
        """By key or reference: "applied", "refused" (only where that is final), "pending", or "absent"."""
        key = action.action_id
        if self._rng.random() < 0.1:
            raise ConnectionError
        if self._hidden.get(key, now) > now:
            return "absent"
        if any(effect.action_id == key for effect in self.ledger):
            return "applied"
        known = self._memory.get(key, "absent")
        return "pending" if known == "accepted" else known


class Clock:
    """Virtual time: what is scheduled, in order. A process may be delayed, paused or killed at every step."""

    def __init__(self, rng: random.Random, faults: bool = True) -> None:
        self.now = EPOCH
        self.steps = 0
        self.kills = 0
        self.pauses = 0
        self.faults = faults
        self._rng = rng
        self._heap: list[tuple[datetime, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + timedelta(seconds=seconds), self._count, work))

    def spawn(self, process: Process, seconds: float = 0.0) -> None:
        self.after(seconds, lambda: self._step(process))

    def _step(self, process: Process) -> None:
        try:
            seconds = next(process)
        except StopIteration:
            return
        if self.faults:
            luck = self._rng.random()
            if luck < 0.05:
                self.kills += 1
                process.close()
                return
            if luck < 0.09:
                self.pauses += 1
                seconds += self._rng.uniform(LEASE, 4 * LEASE)
        self.after(seconds, lambda: self._step(process))

    def run(self, until: datetime) -> None:
        while self._heap and self._heap[0][0] <= until:
            self.now, _, work = heapq.heappop(self._heap)
            self.steps += 1
            work()
        self.now = until
