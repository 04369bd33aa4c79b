"""F40: keys that are changed, and rights that are taken away, while operations are under way."""

import json
from typing import Any

import pytest

from orchestrator import commands, completion, envelope, settling
from orchestrator.domain.errors import ConfigError, UserError
from orchestrator.enqueue import seal
from orchestrator.settings import Settings
from policy.profile import Model
from tests.orchestrator import lab
from tests.orchestrator.desk import DONE, Desk, call, calls

OLD, NEW = "the old key, 32 characters or more", "the new key, 32 characters or more"
RULE = {"tenants": ["acme"], "profiles": ["support"]}


def refused(code: str, work: Any) -> None:
    with pytest.raises((UserError, ConfigError)) as caught:
        work()
    assert caught.value.code == code


def test_a_completion_token_outlives_its_key_for_as_long_as_it_is_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A downstream holds a token of the old key when the new one comes."""

    def use(names: str) -> Settings:
        settings = desk.app.settings.model_copy(update={"completion_key_env": names})
        monkeypatch.setattr(desk.app, "settings", settings)
        return settings

    monkeypatch.setenv("KEY_1", OLD)
    monkeypatch.setenv("KEY_2", NEW)
    use("KEY_1")
    tokens, pending = [], []
    for reference in ("r-1", "r-2"):
        desk.lab.will(status=202, json={"id": reference})
        operation = desk.submit(calls(call("keyed", text=reference)), DONE)
        desk.advance(operation)
        desk.step("writes")
        action = desk.action(operation)
        assert action.state == "PENDING"
        tokens.append(completion.token(desk.app.settings, action.action_id, action.idempotency_key) or "")
        pending.append(action.action_id)
    report = settling.Completed({"id": "r-1", "text": "done"})
    rotated = use("KEY_2, KEY_1")
    assert completion.opened(rotated, completion.token(rotated, "act_1", "k") or "") == ("act_1", "k")
    assert settling.complete(desk.app, pending[0], tokens[0], report) == "SUCCEEDED"
    use("KEY_2")
    refused("TOKEN_BAD", lambda: settling.complete(desk.app, pending[1], tokens[1], report))
    monkeypatch.delenv("KEY_1")
    refused("MISSING_SETTING", lambda: completion.opened(rotated, tokens[0]))
    assert desk.action(operation).state == "PENDING", "an operator or a lookup settles it"


def test_a_senders_key_is_changed_by_a_second_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/enqueue.md says: both are good until the first is removed; what it has asked for goes on."""
    monkeypatch.setenv("KEY_1", OLD)
    monkeypatch.setenv("KEY_2", NEW)
    both = {"desk": {"key_env": "KEY_1"} | RULE, "desk-2": {"key_env": "KEY_2"} | RULE}
    settings = Settings.from_env({"TURNQUEUE_SENDERS": json.dumps(both)})
    envelope.check_senders(settings)
    asked = commands.submission(profile="support", input="Hello", tenant="acme", subject="alice")
    by_old, by_new = (seal(asked, sender=name, key=key) for name, key in (("desk", OLD), ("desk-2", NEW)))
    assert envelope.open_sealed(settings, by_old)[0] == envelope.open_sealed(settings, by_new)[0] == asked
    del both["desk"]
    after = Settings.from_env({"TURNQUEUE_SENDERS": json.dumps(both)})
    assert envelope.open_sealed(after, by_new)[0] == asked
    refused("ENVELOPE_UNKNOWN_SENDER", lambda: envelope.open_sealed(after, by_old))
    stolen = seal(asked, sender="desk-2", key=OLD)
    refused("ENVELOPE_FORGED", lambda: envelope.open_sealed(after, stolen))


def test_a_providers_key_is_changed_between_two_turns(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe that is frozen names the variable, never the key."""
    model = Model(api="openai-responses", name="rotated", base_url="$LAB_MODEL_URL", api_key_env="MODEL_KEY")
    desk.model.add({"id": "rotated", "turns": [calls(call("look", text="a")), DONE]})
    monkeypatch.setenv("MODEL_KEY", OLD)
    operation = desk.submit(model=model)
    used: list[str] = []
    desk.app.model_http.event_hooks = {"request": [lambda request: used.append(request.headers["authorization"])]}
    desk.advance(operation)
    monkeypatch.setenv("MODEL_KEY", NEW)
    assert desk.run(operation).state == "COMPLETED"
    assert used == [f"Bearer {OLD}", f"Bearer {NEW}"]
    stored = desk.sql("SELECT string_agg(p::text, '') || string_agg(o::text, '') AS all FROM profiles p, operations o")
    assert OLD not in stored[0]["all"]


def test_a_right_that_is_withdrawn_stops_what_has_not_started(desk: Desk) -> None:
    """Three operations of a tenant: one write is done, one approved, one waits for approval."""
    done, approved, asked = (desk.submit(calls(call("careful", text=text)), DONE) for text in ("a", "b", "c"))
    for operation in (done, approved, asked):
        desk.advance(operation)
    for operation in (done, approved):
        commands.approve(desk.app, desk.approval(operation), by="boss")
    desk.step("writes")
    lab.FACTS["allowed"] = False
    commands.approve(desk.app, desk.approval(asked), by="boss")
    assert {desk.run(operation).state for operation in (done, approved, asked)} == {"COMPLETED"}
    assert [desk.call(operation).code for operation in (done, approved, asked)] == [None, "NOT_YOURS", "NOT_YOURS"]
    assert [seen.path for seen in desk.lab.seen] == ["/notes/a"]
    assert [desk.audit(operation, "action.started") != [] for operation in (done, approved, asked)] == [
        True, False, False,
    ]  # fmt: skip
