"""5,000 random tampers of a real audit: both verifiers find each one, at the right row.

The operations are played once on real servers and exported; the tampers are made on the exported records, with
everything that somebody who owns the database could do. `SEED` makes a failure repeatable.
"""

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from orchestrator import anchors
from orchestrator.domain import chain
from orchestrator.evidence import ENTRY_FIELDS, Evidence, Point, check
from tests.audit.bench import Bench
from tests.audit.world import KEY, exported, play_all, script

TAMPERS = 5_000
SEED = 20_260_101

Record = dict[str, Any]
Place = tuple[str, int | None]  # operation_id, seq


@dataclass
class World:
    operations: dict[str, Record]
    entries: dict[str, list[Record]]
    calls: dict[str, list[Record]]
    points: dict[str, list[Point]]
    lines: list[bytes]

    @property
    def ids(self) -> list[str]:
        return list(self.operations)


@dataclass
class Copy:
    """The records of a few operations, to be tampered with; the rows themselves are shared until they are replaced."""

    world: World
    ids: list[str]
    entries: list[Record]
    calls: list[Record]

    @classmethod
    def of(cls, world: World, ids: list[str]) -> "Copy":
        entries = [entry for i in ids for entry in world.entries[i]]
        return cls(world, ids, entries, [call for i in ids for call in world.calls.get(i, [])])

    def index(self, operation_id: str, seq: int) -> int:
        return next(n for n, e in enumerate(self.entries) if (e["operation_id"], e["seq"]) == (operation_id, seq))

    def change(self, of: str, place: int, /, **fields: Any) -> None:
        at = self.index(of, place)
        self.entries[at] = self.entries[at] | fields

    def ours(self) -> list[Any]:
        """What `orchestrator.evidence` finds."""
        found = []
        for i in dict.fromkeys([*self.ids, *(e["operation_id"] for e in self.entries)]):
            finding = check(
                Evidence(
                    i,
                    self.world.operations.get(i),
                    [e for e in self.entries if e["operation_id"] == i],
                    [c for c in self.calls if c["operation_id"] == i],
                    self.world.points.get(i, []) if i in self.ids else [],
                )
            )
            if finding is not None:
                found.append((finding.code, finding.operation_id, finding.seq, finding.call_key))
        return found

    def theirs(self) -> list[Any]:
        """What the stand-alone script finds."""
        records = [*(self.world.operations[i] for i in self.ids), *self.entries, *self.calls]
        points = {i: [(p.seq, p.sha256, p.line) for p in self.world.points.get(i, [])] for i in self.ids}
        found = script().verify(records, points)
        return [(f["code"], f["operation_id"], f["seq"], f["call_key"]) for f in found]


@pytest.fixture(scope="module")
def world(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> World:
    here = tmp_path_factory.mktemp("tampers")
    play_all(bench, here / "anchors")
    records = exported(bench, here / "export")[1:-1]
    grouped: dict[str, dict[str, list[Record]]] = {"operation": {}, "entry": {}, "call": {}}
    for record in records:
        grouped[record["record"]].setdefault(record["operation_id"], []).append(record)
    lines = (here / "anchors").read_bytes().splitlines(keepends=True)
    anchored = anchors.check(lines, KEY)
    assert (anchored.findings, anchored.notes) == ([], [])
    operations = {i: one for i, [one] in grouped["operation"].items()}
    return World(operations, grouped["entry"], grouped["call"], anchored.points, lines)


def test_the_world_is_realistic_and_holds(world: World) -> None:
    assert len(world.ids) == 12
    assert len({one["tenant"] for one in world.operations.values()}) == 3
    assert {one["state"] for one in world.operations.values()} >= {"COMPLETED", "CANCELLED", "INCOMPLETE", "READY"}
    kinds = Counter(entry["kind"] for rows in world.entries.values() for entry in rows)
    assert {"approval.approved", "approval.denied", "action.started", "call.settled", "operation.ended"} <= set(kinds)
    assert all(world.points[i][-1].seq == world.entries[i][-1]["seq"] for i in world.ids), "every head is anchored"
    assert max(len(points) for points in world.points.values()) >= 4
    whole = Copy.of(world, world.ids)
    assert (whole.ours(), whole.theirs()) == ([], [])


# --- tampers: each changes a copy and says where the first wrong row is --------------------------------------------


def _other(rng: random.Random, value: Any) -> Any:
    """Something else of the same kind, as close to the original as a careful forger would stay."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 1000))
    if isinstance(value, str) and value:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice([c for c in "0123456789abcdef" if c != value[at]]) + value[at + 1 :]
    if isinstance(value, list):
        return [*value, "more"] if not value or rng.random() < 0.5 else value[:-1]
    if isinstance(value, dict):
        return _other_object(rng, value)
    return "something"


def _other_object(rng: random.Random, value: Record) -> Record:
    changed = copy.deepcopy(value)
    name = rng.choice([*changed, "added"])
    if name == "added":
        changed[name] = True
    elif rng.random() < 0.3:
        del changed[name]
    else:
        changed[name] = _other(rng, changed[name])
    return changed


def _entry(rng: random.Random, world: World, operation_id: str) -> Record:
    return rng.choice(world.entries[operation_id])


def edit(rng: random.Random, made: Copy, i: str) -> Place:
    entry = _entry(rng, made.world, i)
    name = rng.choice([name for name in ENTRY_FIELDS if name not in ("operation_id", "seq", "at")])
    value = made.world.ids[0] if entry[name] is None else _other(rng, entry[name])
    if name == "tenant" and rng.random() < 0.5:
        value = next(o["tenant"] for o in made.world.operations.values() if o["tenant"] != entry["tenant"])
    made.change(i, entry["seq"], **{name: value})
    return i, entry["seq"]


def edit_time(rng: random.Random, made: Copy, i: str) -> Place:
    entry = _entry(rng, made.world, i)
    at = rng.choice([n for n, c in enumerate(entry["at"]) if c.isdigit() and n > 10])
    digit = rng.choice([d for d in "012" if d != entry["at"][at]])
    made.change(i, entry["seq"], at=entry["at"][:at] + digit + entry["at"][at + 1 :])
    return i, entry["seq"]


def move(rng: random.Random, made: Copy, i: str) -> Place:
    """To another operation, or to another place in its own."""
    entry = _entry(rng, made.world, i)
    if rng.random() < 0.5:
        made.change(i, entry["seq"], operation_id=made.ids[1])
        return i, entry["seq"]
    seq = rng.choice([n for n in range(1, len(made.world.entries[i]) + 3) if n != entry["seq"]])
    made.change(i, entry["seq"], seq=seq)
    return i, min(seq, entry["seq"])


def delete(rng: random.Random, made: Copy, i: str) -> Place:
    gone = sorted(rng.sample(range(1, len(made.world.entries[i]) + 1), rng.randint(1, 2)))
    made.entries = [e for e in made.entries if e["operation_id"] != i or e["seq"] not in gone]
    return i, gone[0]


def insert(rng: random.Random, made: Copy, i: str) -> Place:
    """A forged row at place k: beside the true one, with the later ones moved up, or after the head but not linked."""
    rows = made.world.entries[i]
    k = rng.randint(1, len(rows) + 1)
    forged = _other_object(rng, rows[min(k, len(rows)) - 1] | {"seq": k}) | {"seq": k, "operation_id": i}
    forged |= {"body": {"forged": True}, "record": "entry"}
    if rng.random() < 0.5:
        moved = [e | {"seq": e["seq"] + 1} if e["operation_id"] == i and e["seq"] >= k else e for e in made.entries]
        made.entries = moved
    made.entries.insert(rng.randrange(len(made.entries)), forged)
    return i, k


def swap(rng: random.Random, made: Copy, i: str) -> Place:
    """Two rows change places, wholly or in what they say."""
    first, second = sorted(rng.sample(made.world.entries[i], 2), key=lambda e: e["seq"])
    kept = rng.choice((("seq",), ("seq", "prev_sha256", "sha256"), ("seq", "at", "prev_sha256", "sha256")))
    for one, other in ((first, second), (second, first)):
        made.change(i, one["seq"], **{name: other[name] for name in ENTRY_FIELDS if name not in kept})
    return i, first["seq"]


def truncate(rng: random.Random, made: Copy, i: str) -> Place:
    left = rng.randrange(len(made.world.entries[i]))
    made.entries = [e for e in made.entries if e["operation_id"] != i or e["seq"] <= left]
    return i, left + 1


def splice(rng: random.Random, made: Copy, i: str) -> Place:
    """A row of another tenant's operation takes the place of one, in more and more convincing ways."""
    entry, foreign = _entry(rng, made.world, i), _entry(rng, made.world, made.ids[1])
    fitted = {"operation_id": i, "seq": entry["seq"]}
    level = rng.randrange(3)
    if level >= 1:
        fitted |= {"prev_sha256": entry["prev_sha256"], "tenant": entry["tenant"]}
    if level >= 2:
        fitted["sha256"] = entry["sha256"]
    made.entries[made.index(i, entry["seq"])] = foreign | fitted
    return i, entry["seq"]


def rehash(rng: random.Random, made: Copy, i: str) -> Place:
    """One row is rewritten and everything after it hashed again: only an anchor can know."""
    rows = [dict(entry) for entry in made.world.entries[i]]
    k = rng.randrange(len(rows))
    rows[k]["body"] = _other_object(rng, rows[k]["body"])
    if rng.random() < 0.3 and k + 1 < len(rows):
        del rows[k + 1]
    prev = rows[k]["prev_sha256"]
    for seq, row in enumerate(rows[k:], k + 1):
        entry = chain.entry_sha256(i, row["kind"], row["subject_id"], row["actor"], row["body"])
        at = script().microseconds(row["at"])
        link = chain.link_sha256(prev=prev, seq=seq, at=at, tenant=row["tenant"], entry=entry)
        row |= {"seq": seq, "entry_sha256": entry, "prev_sha256": prev, "sha256": link}
        prev = link
    made.entries = [e for e in made.entries if e["operation_id"] != i] + rows
    anchored = next(point.seq for point in made.world.points[i] if point.seq > k)
    return i, min(anchored, len(rows) + 1)


def remove(rng: random.Random, made: Copy, i: str) -> Place:
    """The whole operation: only an anchor knows that there was one."""
    made.entries = [e for e in made.entries if e["operation_id"] != i]
    made.calls = [c for c in made.calls if c["operation_id"] != i]
    return i, 1


TAMPER: tuple[Callable[[random.Random, Copy, str], Place], ...] = (
    edit, edit, edit, edit_time, move, delete, insert, swap, truncate, splice, rehash, remove,
)  # fmt: skip


def test_5000_tampers_of_rows_are_found_at_the_right_row(world: World) -> None:
    rng, made = random.Random(SEED), Counter[str]()
    long_enough = [i for i in world.ids if len(world.entries[i]) >= 2]
    while made.total() < TAMPERS:
        i = rng.choice(long_enough)
        tenant = world.operations[i]["tenant"]
        foreign = rng.choice([other for other in world.ids if world.operations[other]["tenant"] != tenant])
        copied = Copy.of(world, [i, foreign])
        tamper = rng.choice(TAMPER)
        expected = tamper(rng, copied, i)
        ours, theirs = copied.ours(), copied.theirs()
        where = [(operation_id, seq) for _, operation_id, seq, _ in ours]
        assert expected in where, f"tamper {made.total()}, {tamper.__name__}: {ours}"
        assert sorted(map(str, ours)) == sorted(map(str, theirs)), f"tamper {made.total()}, {tamper.__name__}"
        made[tamper.__name__] += 1
    assert len(made) == len(set(TAMPER))


def test_tampers_of_calls_are_found_at_the_right_call(world: World) -> None:
    """The rows that the entries speak of: edited with their digest recomputed, swapped, deleted, added."""
    rng = random.Random(SEED)
    with_calls = [i for i, calls in world.calls.items() if len(calls) >= 2]
    for number in range(500):
        i = rng.choice(with_calls)
        copied = Copy.of(world, [i])
        copied.calls, key = _tampered_calls(rng, copied.calls)
        ours = copied.ours()
        assert [call for _, _, _, call in ours] == [key], f"tamper {number}: {ours}"
        assert copied.theirs() == ours


def _tampered_calls(rng: random.Random, calls: list[Record]) -> tuple[list[Record], str]:
    """(tampered records, call_key of the first wrong one)."""
    first, second = sorted(rng.sample(range(len(calls)), 2))
    made = copy.deepcopy(calls)
    match rng.randrange(5):
        case 0:
            name = rng.choice(sorted(made[first]["binding"]))
            made[first]["binding"][name] = _other(rng, made[first]["binding"][name])
            made[first]["facts"] |= {n: made[first]["binding"][n] for n in made[first]["facts"] if n == name}
            made[first]["binding_sha256"] = script().digest(b"binding-v1", made[first]["binding"])
        case 1:
            made[first]["facts"]["result_sha256"] = _other(rng, made[first]["facts"]["result_sha256"])
        case 2:
            del made[first]
        case 3:
            made.append(made[first] | {"call_key": "call_forged"})
            return made, "call_forged"
        case _:
            names = ("settled", "facts", "binding", "binding_sha256")
            a, b = ({name: made[at][name] for name in names} for at in (first, second))
            made[first] |= b
            made[second] |= a
    return made, calls[first]["call_key"]


def test_tampers_of_the_anchor_file_are_found_at_the_right_line(world: World) -> None:
    rng = random.Random(SEED)
    for number in range(500):
        lines, expected = _tampered_lines(rng, list(world.lines))
        ours = [(f.code, f.line) for f in anchors.check(lines, KEY).findings]
        theirs = [(f["code"], f["line"]) for f in script().read_anchors(lines, KEY)[1]]
        assert ours[0][1] == expected, f"tamper {number}: {ours}"
        assert theirs == ours


def _tampered_lines(rng: random.Random, lines: list[bytes]) -> tuple[list[bytes], int]:
    """(lines, number of the first wrong one). The last line can be cut off unseen: only a copy elsewhere tells."""
    at = rng.randrange(len(lines) - 1)
    line = json.loads(lines[at])
    match rng.randrange(6):
        case 0:
            del lines[at]
            return lines, at + 1
        case 1:
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
            return lines, at + 1
        case 2:
            lines.insert(at + 1, lines[at])
            return lines, at + 2
        case 3:
            line["heads"].pop(rng.randrange(len(line["heads"])))
        case 4:
            head = rng.choice(line["heads"])
            name = rng.choice(sorted(head))
            head[name] = _other(rng, head[name])
        case _:
            name = rng.choice(sorted(set(line) - {"heads", "at"}))
            line[name] = _other(rng, line[name])
    lines[at] = json.dumps(line).encode() + b"\n"
    return lines, at + 1
