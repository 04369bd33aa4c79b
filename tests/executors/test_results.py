"""What a model may see of a result: allowlisted fields, no credentials, no more than the cap."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from executors import results
from executors.registry import ToolSpec
from orchestrator.domain.model import Effect


class Args(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Row(BaseModel):
    id: str
    text: Any = ""
    internal_note: str = "for staff only"


def spec(**changed: Any) -> ToolSpec:
    fields: dict[str, Any] = {
        "name": "row", "description": "Return a row.", "arguments": Args, "result": Row, "effect": Effect.READ,
        "handler": lambda args, ctx: None, "expose": frozenset({"id", "text"}),
    }  # fmt: skip
    return ToolSpec(**(fields | changed))


def shown(answer: Any, **changed: Any) -> Any:
    limited = spec(**changed)
    return json.loads(results.success(limited, results.validated(limited, answer)).text)


@pytest.mark.parametrize("answer", [Row(id="1", text="t"), {"id": "1", "text": "t", "password": "x"}])
def test_only_allowlisted_fields_are_shown(answer: Any) -> None:
    assert shown(answer) == {"state": "succeeded", "data": {"id": "1", "text": "t"}}


def test_without_an_allowlist_the_result_model_is_one() -> None:
    assert set(shown({"id": "1", "password": "x"}, expose=None)["data"]) == {"id", "text", "internal_note"}


class Wider(Row):
    secret: str = "s3cret"


def test_a_subclass_does_not_smuggle_its_fields() -> None:
    assert "s3cret" not in json.dumps(shown(Wider(id="1"), expose=None))


SECRETS = [
    "sk-abcdefghij0123456789",
    "AKIAABCDEFGHIJKLMNOP",
    "ghp_abcdefghijklmnopqrst1234",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "Bearer abcdefghijklmnop1234",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nMIIE and the rest was cut",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_credentials_are_scrubbed_wherever_they_are(secret: str) -> None:
    data = shown({"id": "1", "text": {"deep": [f"key {secret}", {"more": secret}]}})["data"]
    assert data["text"]["deep"][0].startswith("key [redacted]")
    assert secret[7:25] not in json.dumps(data)
    refusal = results.error("failed", "NO", f"said {secret}")
    assert secret[7:25] not in refusal.text


def test_ordinary_text_is_left_alone() -> None:
    text = "The bearer of this letter may pass; task sk-1, order A-100."
    assert shown({"id": "1", "text": text})["data"]["text"] == text


def test_what_a_database_refuses_is_replaced() -> None:
    assert shown({"id": "a\0b"})["data"]["id"] == "a\ufffdb"
    assert results.storable("\ud800x") == "?x"


texts = st.text(st.characters(codec="utf-8"), max_size=2000)


@given(st.integers(256, 3000), texts | st.lists(st.text('"\\\x01é€😀', max_size=40), max_size=60))
def test_no_observation_is_over_the_cap(cap: int, text: Any) -> None:
    limited = spec(max_result_bytes=cap)
    observation = results.success(limited, results.validated(limited, {"id": "1", "text": text}))
    assert observation.size <= cap
    body = json.loads(observation.text)
    assert body["state"] == "succeeded"
    assert ("data" in body) != ("truncated" in body)


def test_a_cut_result_says_so_and_gives_the_digest_of_the_whole() -> None:
    limited = spec(max_result_bytes=300)
    body = shown({"id": "1", "text": "x" * 1000}, max_result_bytes=300)
    whole = json.dumps(results.validated(limited, {"id": "1", "text": "x" * 1000}), separators=(",", ":"))
    assert body["truncated"] is True
    assert str(len(whole)) in body["notice"]
    assert body["sha256"] == hashlib.sha256(whole.encode()).hexdigest()
    assert whole.startswith(body["data_head"])


def test_the_cap_is_exact() -> None:
    whole = results.success(spec(), results.validated(spec(), {"id": "1", "text": "x" * 500}))
    assert "truncated" not in shown({"id": "1", "text": "x" * 500}, max_result_bytes=whole.size)
    assert "truncated" in shown({"id": "1", "text": "x" * 500}, max_result_bytes=whole.size - 1)


def test_a_large_number_in_a_large_result_does_not_hide_the_success() -> None:
    assert shown({"id": "1", "text": [2**70, "x" * 1000]}, max_result_bytes=300)["truncated"] is True


class Money(BaseModel):
    id: str
    cents: int


@pytest.mark.parametrize("answer", [{"id": "1", "cents": "SECRET-VALUE"}, {"cents": 1}, "SECRET-VALUE", None, [1]])
def test_a_bad_result_names_fields_and_never_values(answer: Any) -> None:
    with pytest.raises(results.BadResult) as caught:
        results.validated(spec(result=Money, expose=None), answer)
    assert "SECRET" not in str(caught.value)
    assert "Money" in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_error_message_is_cut() -> None:
    body = json.loads(results.error("failed", "NO", "x" * 1000).text)
    assert body == {"state": "failed", "code": "NO", "message": "x" * results.MAX_MESSAGE}


@pytest.mark.parametrize("answer", [{"id": 7}, Row.model_construct(id=7)])
def test_reference(answer: Any) -> None:
    assert results.reference(spec(reference_field="id"), answer) == "7"
    assert results.reference(spec(), answer) is None
    assert results.reference(spec(reference_field="id"), {}) is None
