"""The public verbs: what they refuse, in which words."""

from typing import Any

import pytest

from orchestrator import commands
from orchestrator.domain.errors import Conflict, NotFound, UserError
from orchestrator.submission import MAX_INPUT
from tests.orchestrator.desk import DONE, Desk, call, calls

GOOD: dict[str, Any] = {"profile": "lab", "input": "Please.", "tenant": "acme", "subject": "alice"}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"profile": ""}, "profile"),
        ({"input": ""}, "input"),
        ({"input": "x" * (MAX_INPUT + 1)}, "input"),
        ({"input": "a\0b"}, "input"),
        ({"tenant": "two words"}, "tenant"),
        ({"tenant": ""}, "tenant"),
        ({"subject": "a\0b"}, "subject"),
        ({"subject": ""}, "subject"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k" * 257}, "idempotency_key"),
        ({"scopes": "r"}, "scopes"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_field_is_named(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(UserError) as caught:
        commands.submission(**(GOOD | changed))
    assert caught.value.code == "BAD_FIELD"
    assert caught.value.message.startswith(field)


def test_unknown_profile_lists_the_known_ones(desk: Desk) -> None:
    with pytest.raises(NotFound, match="known: none are registered") as caught:
        commands.submit(desk.app, commands.submission(**GOOD))
    assert caught.value.code == "UNKNOWN_PROFILE"
    desk.submit(DONE)
    with pytest.raises(NotFound, match=r"known: lab\d+"):
        commands.submit(desk.app, commands.submission(**GOOD))


def test_same_key_and_request_same_operation(desk: Desk) -> None:
    desk.submit(DONE)
    [profile] = desk.app.registry.profiles
    request = commands.submission(
        **(GOOD | {"profile": profile.name, "idempotency_key": profile.name, "scopes": {"b", "a"}})
    )
    first, second = commands.submit(desk.app, request), commands.submit(desk.app, request)
    assert (first.created, second.created) == (True, False)
    assert first.operation_id == second.operation_id
    for changed in ({"input": "Other."}, {"subject": "bob"}, {"scopes": frozenset({"a"})}):
        with pytest.raises(Conflict, match=first.operation_id) as caught:
            commands.submit(desk.app, request.model_copy(update=changed))
        assert caught.value.code == "IDEMPOTENCY_CONFLICT"
    assert commands.submit(desk.app, request.model_copy(update={"tenant": "initech"})).created


def test_what_is_of_another_tenant_does_not_exist(desk: Desk) -> None:
    operation = desk.submit(calls(call("careful")))
    desk.advance(operation)
    approval = desk.approval(operation)
    for verb in (commands.approve, commands.deny):
        with pytest.raises(NotFound, match="there is no approval"):
            verb(desk.app, approval, by="boss", tenant="initech")
    with pytest.raises(NotFound, match="there is no operation"):
        commands.cancel(desk.app, operation, tenant="initech")
    with pytest.raises(NotFound, match="there is no operation"):
        commands.inspect(desk.app, operation, tenant="initech")
    assert commands.inspect(desk.app, operation, tenant="acme").state == "WAITING_APPROVAL"


def test_unknown_ids(desk: Desk) -> None:
    for verb in (commands.cancel, commands.inspect):
        with pytest.raises(NotFound, match="'op_ghost'") as caught:
            verb(desk.app, "op_ghost")
        assert caught.value.code == "UNKNOWN_OPERATION"
    with pytest.raises(NotFound, match="'apr_ghost'") as caught:
        commands.approve(desk.app, "apr_ghost", by="boss")
    assert caught.value.code == "UNKNOWN_APPROVAL"


def test_a_decision_needs_a_person(desk: Desk) -> None:
    with pytest.raises(UserError, match="by: name the person"):
        commands.approve(desk.app, "apr_ghost", by="  ")


def test_list(desk: Desk) -> None:
    older, newer = desk.submit(DONE), desk.submit(DONE)
    listed = [row["operation_id"] for row in commands.list_operations(desk.app, tenant="acme", state="READY", limit=2)]
    assert listed == [newer, older]
    assert commands.list_operations(desk.app, tenant="nobody") == []
    with pytest.raises(UserError, match="'SLEEPING' is not one of READY, "):
        commands.list_operations(desk.app, state="SLEEPING")
