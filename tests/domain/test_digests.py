"""Canonical JSON and the digests that tie things together, against vectors written out by hand."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain import digests

INTENT: dict[str, Any] = {
    "tenant": "acme", "operation_id": "op_1", "tool": "refund", "intent": {"b": 1, "a": "é"}, "generation": 0,
}  # fmt: skip
ACTION: dict[str, Any] = {
    "tenant": "acme", "subject": "customer-7", "operation_id": "op_1", "revision": 1, "tool": "refund",
    "tool_version": "1", "arguments": {"amount": 2450}, "idempotency_key": "tq_1", "policy_version": "p1",
    "resource_version": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": [1, 2.0], "a": "é\n"}, '{"a":"é\\n","b":[1,2]}'),
        ({"\u20ac": 1, "\r": 2, "1": 3}, '{"\\r":2,"1":3,"€":1}'),  # sorted by UTF-16 code units
        ([1e21, 1e-7, 0.1, -0.0], "[1e+21,1e-7,0.1,0]"),
        ({"n": None, "t": True, "s": '"\\'}, '{"n":null,"s":"\\"\\\\","t":true}'),
        (2**53 - 1, "9007199254740991"),
    ],
)
def test_canonical_form(value: Any, expected: str) -> None:
    assert digests.canonical(value) == expected.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, {"deep": [-(2**53)]}, "\ud800", {1: 2}, b"x"])
def test_what_has_no_canonical_form_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        digests.canonical(value)


def test_digest_is_sha256_of_domain_nul_canonical() -> None:
    expected = hashlib.sha256(b'arguments-v1\x00{"amount":2450,"order":"A1"}').hexdigest()
    assert digests.sha256("arguments-v1", {"order": "A1", "amount": 2450.0}) == expected
    assert digests.sha256_bytes(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_domains_are_separate() -> None:
    assert digests.sha256("a", {}) != digests.sha256("b", {})
    assert digests.sha256("action-v1", ACTION) != digests.sha256("binding-v1", ACTION)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), json_values, max_size=5), st.randoms())
def test_key_order_and_integral_floats_make_no_difference(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    floated = {k: float(v) if isinstance(v, int) and not isinstance(v, bool) else v for k, v in items}
    assert digests.sha256("d", floated) == digests.sha256("d", value)


def test_idempotency_key_vector_and_form() -> None:
    text = '{"generation":0,"intent":{"a":"é","b":1},"operation":"op_1","tenant":"acme","tool":"refund"}'
    expected = "tq_" + hashlib.sha256(b"intent-v1\0" + text.encode()).hexdigest()[:48]
    assert digests.idempotency_key(**INTENT) == expected
    assert len(expected) == 51


@pytest.mark.parametrize("field", sorted(INTENT))
def test_every_part_of_an_intent_changes_its_key(field: str) -> None:
    changed = INTENT | {field: {"other": 1} if field == "intent" else 7 if field == "generation" else "other"}
    assert digests.idempotency_key(**changed) != digests.idempotency_key(**INTENT)


@pytest.mark.parametrize("field", sorted(ACTION))
def test_an_approval_covers_every_part_of_the_action(field: str) -> None:
    changed = ACTION | {field: {"amount": 2451} if field == "arguments" else 2 if field == "revision" else "other"}
    assert digests.action_digest(**changed) != digests.action_digest(**ACTION)


def test_a_binding_ties_result_and_state_to_the_request() -> None:
    half = digests.request_binding(
        operation={"operation_id": "op_1"}, request={"response_id": "r1"}, call={"call_id": "c1"}, policy_version="p"
    )
    whole, digest = digests.bind(half, observation="{}", state="SUCCEEDED")
    assert whole == {
        "operation_id": "op_1", "response_id": "r1", "call_id": "c1", "policy_version": "p",
        "result_sha256": hashlib.sha256(b"{}").hexdigest(), "result_state": "SUCCEEDED",
    }  # fmt: skip
    assert digest == digests.sha256("binding-v1", whole)
    assert digests.bind(half, observation="{ }", state="SUCCEEDED")[1] != digest
    assert digests.bind(half, observation="{}", state="FAILED")[1] != digest
