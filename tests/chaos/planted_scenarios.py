"""The small runs in which a planted bug must show itself, and in which the real code must show nothing.

A scenario says what is worked on, who dies or stops where, what the downstream and the network do, and what the people
are like. It knows no bug: the verdict is that of `verify`, of the log (an error), or that it does not come to rest.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEASE = 0.8  # seconds
BASE = {
    "TURNQUEUE_LEASE_SECONDS": str(LEASE),
    "TURNQUEUE_SWEEP_SECONDS": "0.15",
    "TURNQUEUE_SLICE_SECONDS": "0.1",
    "TURNQUEUE_HINT_LIMIT": "64",
    "TURNQUEUE_LOST_LIMIT": "1000",
    "TURNQUEUE_CHECK_LIMIT": "2",
    "TURNQUEUE_LOG_LEVEL": "WARNING",
    "CHAOS_TIMEOUT": "3",
    "CHAOS_CONCLUSIVE": "0.4",
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """`turns`: the tools that each operation's turns call; `tool:name` for a call that is made several times.

    `points` are armed as in a file `armed`, hits counted over all processes. `ledger` is an order to it, `next` a list
    of kinds of which one is drawn for each write; it refuses connections once it has taken `refuse_after` requests.
    `network`: faults of a proxy before PostgreSQL. `disk`: milliseconds that it takes longer to flush a commit, 100 at
    most. `crowd`: somebody locks the table of the slots until so many wait for it. `sleep`: how long who was stopped
    sleeps, at least and at most; `cruel`: not longer than until somebody else does its work; `together`: until all
    points have stopped somebody. `sweep_after`: so many must have died, and their leases run out, before sweepers come.
    `shots`: so many workers are killed at work. `flush`, `dup`: seconds between two of them. `patience`: attempts of a
    write before somebody changes their mind. `pace`: seconds between two steps of the people. `rest`: seconds for
    coming to rest.
    """

    turns: tuple[tuple[str, ...], ...]
    operations: int = 2
    tenants: tuple[str, ...] = ("north",)
    points: tuple[str, ...] = ()
    ledger: Mapping[str, Any] = field(default_factory=dict)
    next: tuple[str, ...] = ()
    network: Mapping[str, float] = field(default_factory=dict)
    refuse_after: int | None = None
    model: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    people: tuple[str, ...] = ()
    workers: int = 4
    sweepers: int = 1
    sweep: float = 0.12  # seconds between two rounds of one sweeper
    sleep: tuple[float, float] = (2 * LEASE, 4 * LEASE)
    cruel: bool = True
    together: bool = False
    sweep_after: int = 0
    disk: int = 0
    crowd: int = 0
    shots: int = 0
    flush: float = 0.0
    dup: float = 0.0
    patience: int = 0
    pace: float = 0.05
    rest: float = 50.0

    @property
    def lease(self) -> float:
        return float(self.env.get("TURNQUEUE_LEASE_SECONDS", LEASE))

    def text(self, run: str, tenant: str, number: int) -> str:
        """`run`: a name of the run's own, since the model plays for several at a time."""
        return f"Do it. [script:{run}-{tenant}-{number}]"

    def scripts(self, run: str) -> list[dict[str, Any]]:
        """What the model says; the `name` of each call is unique unless the scenario gives it one."""
        return [
            {"id": f"{run}-{tenant}-{number}", "turns": [*self._turns(f"{tenant}-{number}"), _DONE]}
            for tenant in self.tenants
            for number in range(self.operations)
        ]

    def _turns(self, name: str) -> list[dict[str, Any]]:
        turns = []
        for turn, tools in enumerate(self.turns):
            calls = []
            for place, said in enumerate(tools):
                tool, _, same = said.partition(":")
                calls.append({"name": tool, "arguments": {"name": f"{name}-{same or f'{turn}.{place}'}"}})
            turns.append({"calls": calls, **({"fault": dict(self.model)} if self.model else {})})
        return turns

    def drawn(self, seed: int) -> list[str]:
        """The faults of the run's writes, in the order in which they arrive."""
        chosen = random.Random(seed)
        return [chosen.choice(self.next) for _ in range(200)] if self.next else []


_DONE = {"text": "Done."}
_NORTH_SOUTH = ("north", "south")
_UNSWEPT = {"TURNQUEUE_LEASE_SECONDS": "15"}  # nobody repairs what a slow machine loses
_PATIENT = {"TURNQUEUE_LEASE_SECONDS": "3"}  # for a while nobody does

SCENARIOS: dict[str, Scenario] = {
    # Nothing goes wrong, and no sweeper helps: the hints alone must carry everything to its end.
    "hints_only": Scenario(
        turns=(("look", "narrow", "pay_keyed"), ("pay_both", "pay_keyed"), ("pay_free", "pay_free", "look"),
               ("pay_lookup", "pay_blind"), ("pay_keyed:same",), ("pay_keyed:same", "pay_lookup:same"),
               ("pay_lookup:same",)),
        tenants=_NORTH_SOUTH, sweepers=0, workers=3, env=_UNSWEPT,
    ),
    # The same for one operation alone, so that no other's hint makes up for one that is missing.
    "alone": Scenario(turns=(("look", "look"), ("pay_keyed",)), operations=1, sweepers=0, env=_UNSWEPT, disk=80),
    # The hints get lost, and whoever dies between commit and publish takes some along.
    "flushed": Scenario(
        turns=(("look", "look"), ("pay_keyed", "pay_keyed")), operations=3, flush=0.1,
        points=("submit.committed:1:kill", "turn.claimed:1:kill", "turn.recorded:1:kill", "turn.recorded:2:kill",
                "turn.recorded:3:kill", *(f"read.recorded:{n}:kill" for n in (2, 4, 6)),
                *(f"write.recorded:{n}:kill" for n in (2, 4, 6))),
    ),
    "submits": Scenario(
        turns=(("pay_keyed",),), operations=3, tenants=_NORTH_SOUTH, people=("look", "conflicts"),
        points=("submit.committed:1:kill", "submit.committed:4:kill"),
    ),
    # The downstream answers badly, late, or not at all, and hides what it did.
    "uncertain": Scenario(
        turns=(("pay_lookup",), ("pay_blind",), ("pay_keyed", "pay_both")), operations=3,
        next=("after", "status", "garbage", "slow", "hide", "before", "refuse", ""),
        ledger={"late_s": 2.0, "hide_s": 5.0}, env={"CHAOS_TIMEOUT": "1"},
    ),
    "refused": Scenario(
        turns=(("pay_keyed", "pay_both", "pay_keyed"),), operations=3, next=("refuse", "after", ""),
    ),
    "exhausted": Scenario(
        turns=(("look", "pay_keyed"),), operations=2, next=("before",),
        ledger={"faults": {"status": 1.0}}, env={"CHAOS_ATTEMPTS": "3"},
    ),
    "unreachable": Scenario(
        turns=(("pay_keyed",),), operations=1, next=("after",), refuse_after=1, env={"CHAOS_ATTEMPTS": "3"},
    ),
    # Workers die and stop around a write; two sweepers, neither of which waits for the other.
    "zombies": Scenario(
        turns=(("pay_keyed",),), operations=4, sweepers=2, next=("late", ""), ledger={"late_s": 0.6},
        points=("write.sending:1:stop", "write.after_started:2:stop", "write.after_effect:3:stop",
                "write.after_started:4:kill", "write.unread:4:kill"),
    ),
    "stale_sweeper": Scenario(
        turns=(("pay_keyed",),), operations=4, sweepers=2, sweep_after=2, env=_PATIENT, next=("late",),
        ledger={"late_s": 2.0},
        points=(*(f"write.after_started:{n}:kill" for n in (1, 2, 3)), "sweeper.repaired:1:stop"),
    ),
    "zombie_reads": Scenario(
        turns=(("look", "look", "narrow"), ("narrow", "narrow", "pay_keyed")), operations=2,
        ledger={"faults": {"late": 0.6, "status": 0.3}, "late_s": 0.5},
        points=("read.answered:1:stop", "read.answered:3:stop", "read.claimed:5:kill", "read.answered:6:stop"),
    ),
    "zombie_turns": Scenario(
        turns=(("look", "pay_keyed"), ("pay_keyed",)), operations=2, model={"delay": 0.2},
        points=("turn.replied:1:stop", "turn.claimed:3:kill", "turn.replied:4:stop", "turn.recorded:4:kill"),
    ),
    # Everything takes longer than a lease, and nobody dies.
    "slow": Scenario(
        turns=(("look", "pay_keyed"),), operations=2, model={"delay": 2 * LEASE}, next=("late",),
        ledger={"faults": {"late": 1.0}, "late_s": 2 * LEASE}, env={"TURNQUEUE_LOST_LIMIT": "2"},
    ),
    "limits": Scenario(
        turns=(("pay_both",), ("narrow",)), operations=5, workers=6, next=("late",),
        ledger={"faults": {"late": 0.7}, "late_s": 2.5 * LEASE},
    ),
    # Several come to the same place and go on at the same moment.
    "start_together": Scenario(
        turns=(("narrow",),), operations=5, workers=6, sweepers=0, env=_UNSWEPT, disk=80, crowd=4,
        ledger={"faults": {"late": 1.0}, "late_s": 1.5},
    ),
    "record_together": Scenario(
        turns=(("pay_free", "pay_free", "pay_free"),), operations=1, sweepers=0, env=_UNSWEPT, together=True,
        points=tuple(f"write.after_effect:{n}:stop" for n in range(1, 4)),
    ),
    "killed_at_work": Scenario(
        turns=(("pay_both",),), operations=6, workers=6, next=("slow",), ledger={"late_s": 3 * LEASE}, shots=2,
    ),
    "racing": Scenario(
        turns=(("pay_free", "pay_free", "pay_free", "look"), ("pay_keyed", "pay_keyed", "pay_keyed")), operations=2,
        workers=6, dup=0.15, next=("late", ""), ledger={"late_s": 0.15},
    ),
    # The connection to the database breaks at a commit, before or after it is durable, and elsewhere.
    "commits": Scenario(
        turns=(("look", "pay_lookup"), ("pay_blind",), ("pay_keyed", "pay_keyed")), operations=4,
        network={"commit": 0.1, "answer": 0.02, "reset": 0.01},
    ),
    "approvals": Scenario(
        turns=(("pay_asked", "pay_two"), ("pay_two", "pay_asked")), operations=2, tenants=_NORTH_SOUTH,
        people=("intrude", "hasten", "approve"),
    ),
    "wavering": Scenario(turns=(("pay_asked", "pay_asked"),), operations=2, people=("waver",), pace=1.0),
    # The rows are altered behind the back of whoever approves.
    "altered": Scenario(turns=(("pay_asked", "pay_asked"),), operations=2, people=("alter", "approve")),
    # The approval runs out between the decision and the start. A sweeper would see it first.
    "expired": Scenario(
        turns=(("pay_brief",),), operations=2, people=("approve",), sweepers=0, env=_UNSWEPT, sleep=(1.6, 1.7),
        cruel=False, points=("write.before_started:1:stop", "write.before_started:2:stop"),
    ),
    "cancelled": Scenario(
        turns=(("pay_keyed", "pay_keyed"),), operations=3, people=("cancel",), cruel=False,
        points=("write.before_started:1:stop", "write.before_started:2:stop", "write.after_started:1:kill"),
    ),
    "amended": Scenario(
        turns=(("pay_keyed", "pay_keyed"),), operations=3, people=("amend",), cruel=False,
        points=("write.before_started:1:stop", "write.before_started:2:stop"),
    ),
    # Somebody cancels while a write that may have arrived waits to be sent again.
    "withdrawn": Scenario(
        turns=(("pay_keyed",),), operations=1, people=("cancel",), patience=1, next=("after",), cruel=False,
        points=("write.before_started:2:stop",),
    ),
}  # fmt: skip
