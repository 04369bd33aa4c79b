"""The chain: PostgreSQL's links are those of the pure description, one statement writes them, order and lock hold."""

import hashlib
import json
import threading
from itertools import pairwise

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from orchestrator import engine
from orchestrator.domain import chain, digests
from store import audit, operations
from tests.audit.bench import Bench
from tests.audit.world import script
from tests.store.rows import Rows

ZERO = "00" * 32


def links(bench: Bench, operation_id: str) -> list[dict[str, object]]:
    with bench.app.database.autocommit() as connection:
        return audit.of_operation(connection, operation_id)


@pytest.fixture
def operation_id(bench: Bench) -> str:
    return Rows(bench.app.database).operation(tenant="acme")


def test_vectors_written_out_by_hand() -> None:
    text = '{"actor":"é","body":{"a":[1,null,true]},"kind":"k","operation_id":"op_1","subject_id":null}'
    entry = hashlib.sha256(b"audit-entry-v1\0" + text.encode()).hexdigest()
    assert chain.entry_sha256("op_1", "k", None, "é", {"a": [1, None, True]}) == entry
    assert chain.genesis("op_1") == hashlib.sha256(b"audit-genesis-v1\0op_1").hexdigest()
    parts = bytes(32) + b"\0\0\0\0\0\0\0\7" + b"\0\0\0\0\0\0\1\0" + hashlib.sha256(b"acme").digest()
    link = hashlib.sha256(b"audit-link-v1\0" + parts + bytes.fromhex(entry)).hexdigest()
    assert chain.link_sha256(prev=ZERO, seq=7, at=256, tenant="acme", entry=entry) == link


@pytest.mark.parametrize(
    "body", [{"a": 1.0}, {"é": 1, "b": [0.5]}, {"a": [{"é": 1}, 1.5]}, {"a": b"x"}, {"a": 2**53}, {"a": "\ud800"}]
)
def test_bodies_that_would_come_back_otherwise_are_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        chain.entry_sha256("op_1", "k", None, "a", body)


def test_links_of_the_database_are_those_of_the_description(bench: Bench, operation_id: str) -> None:
    body = {"text": "Grüße \"'\\ \n \u2028 \U0001f980", "list": [1, None, True, {"deep": [-5]}], "empty": {}}
    with bench.app.database.transaction() as connection, engine.Unit(connection, "worker:é") as unit:
        operations.lock(connection, operation_id)
        for number in range(3):
            unit.audit(operation_id, f"kind.{number}", "x" if number else None, **body, number=number)
    with bench.app.database.transaction() as connection, engine.Unit(connection, "sweeper") as unit:
        operations.lock(connection, operation_id)
        unit.audit(operation_id, "later")
    prev = chain.genesis(operation_id)
    rows = links(bench, operation_id)
    assert [(row["seq"], row["kind"]) for row in rows] == [(1, "kind.0"), (2, "kind.1"), (3, "kind.2"), (4, "later")]
    for row in rows:
        entry = chain.entry_sha256(operation_id, row["kind"], row["subject_id"], row["actor"], row["body"])
        at = chain.microseconds(row["at"])
        link = chain.link_sha256(prev=prev, seq=row["seq"], at=at, tenant="acme", entry=entry)
        assert (row["entry_sha256"], row["prev_sha256"], row["sha256"]) == (entry, prev, link)
        prev = link
    assert rows[0]["body"] == json.loads(json.dumps(body)) | {"number": 0}


def test_a_unit_writes_its_entries_with_one_statement(bench: Bench, operation_id: str) -> None:
    other = Rows(bench.app.database).operation(tenant="other")
    with bench.counted() as seen, bench.app.database.transaction() as connection:
        with engine.Unit(connection, "a") as unit:
            for number in range(5):
                unit.audit(operation_id, f"kind.{number}")
        assert seen["audit"] == 1
        with engine.Unit(connection, "a") as unit:
            unit.audit(operation_id, "again")
            unit.audit(other, "other")
    assert seen["audit"] == 3, "one statement per operation"
    assert [row["seq"] for row in links(bench, operation_id)] == [1, 2, 3, 4, 5, 6]
    assert [row["tenant"] for row in links(bench, other)] == ["other"]


def test_outside_of_a_block_each_entry_is_written_at_once(bench: Bench, operation_id: str) -> None:
    with bench.app.database.transaction() as connection:
        engine.Unit(connection, "a").audit(operation_id, "at.once")
        assert [row["kind"] for row in audit.of_operation(connection, operation_id)] == ["at.once"]


def test_a_unit_that_fails_writes_nothing(bench: Bench, operation_id: str) -> None:
    def fail() -> None:
        with bench.app.database.transaction() as connection, engine.Unit(connection, "a") as unit:
            unit.audit(operation_id, "never")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert links(bench, operation_id) == []


def test_concurrent_units_make_one_chain(bench: Bench, operation_id: str) -> None:
    def write(actor: str) -> None:
        for number in range(10):
            with bench.app.database.transaction() as connection, engine.Unit(connection, actor) as unit:
                operations.lock(connection, operation_id)
                unit.audit(operation_id, f"kind.{number}")
                unit.audit(operation_id, f"kind.{number}.more")

    threads = [threading.Thread(target=write, args=(f"worker:{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = links(bench, operation_id)
    assert [row["seq"] for row in rows] == list(range(1, 121))
    assert all(later["prev_sha256"] == earlier["sha256"] for earlier, later in pairwise(rows))


def test_a_writer_without_the_lock_is_refused(bench: Bench, operation_id: str) -> None:
    """Two that append to the same head cannot both commit."""
    with bench.app.database.transaction() as first:
        engine.Unit(first, "first").audit(operation_id, "k")
        failures: list[BaseException] = []

        def second() -> None:
            try:
                with bench.app.database.transaction() as connection:
                    engine.Unit(connection, "second").audit(operation_id, "k")
            except IntegrityError as error:
                failures.append(error)

        thread = threading.Thread(target=second)
        thread.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        while not bench.sql(waiting):
            assert thread.is_alive()
    thread.join()
    assert len(failures) == 1
    assert [row["actor"] for row in links(bench, operation_id)] == ["first"]


names = st.text(st.characters(codec="utf-8"), max_size=3) | st.sampled_from(["\ue000", "\U0001f980", "a", "b"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.text(st.characters(codec="utf-8"), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(names, values, max_size=4))
def test_both_writers_of_canonical_json_are_rfc_8785(body: dict[str, object]) -> None:
    entry = {"operation_id": "op", "kind": "k", "subject_id": None, "actor": "é", "body": body}
    assert script().canonical(body).encode() == rfc8785.dumps(body)
    assert chain.entry_sha256("op", "k", None, "é", body) == digests.sha256("audit-entry-v1", entry)
