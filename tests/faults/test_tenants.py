"""F35: everything that one tenant does fails and is tried again; the others do not feel it."""

from collections import Counter

import pytest

from orchestrator import commands, dispatch, turn
from policy.profile import Model, Profile
from tests.orchestrator import lab
from tests.orchestrator.desk import DONE, Desk, call, calls

STORM = 30
TRIES = 3  # of a read, unless its tool says otherwise


def submitted(desk: Desk, tenant: str, many: int, tool: str) -> list[str]:
    """Operations of this tenant whose only call reads under the tenant's name."""
    name = f"storm-{tenant}-{tool}"
    desk.model.add({"id": name, "turns": [calls(call(tool, text=tenant)), DONE]})
    model = Model(api="openai-responses", name=name, base_url="$LAB_MODEL_URL")
    tools = tuple(spec.name for spec in lab.TOOLS)
    desk.app.registry.add_profile(Profile(name=name, model=model, instructions="Help.", tools=tools))
    made = []
    for _ in range(many):
        request = commands.submission(profile=name, input="Please.", tenant=tenant, subject="alice")
        made.append(commands.submit(desk.app, request).operation_id)
        assert turn.advance(desk.app, made[-1])
    return made


def served(desk: Desk) -> Counter[str]:
    return Counter(seen.path.rpartition("/")[2] for seen in desk.lab.seen)


def test_a_tool_that_fails_for_one_tenant(desk: Desk) -> None:
    """Every read of `noisy` is answered with 503. It is tried so often, later each time, and waits in its row: the
    tenant behind it has its turn before the first of them comes again."""
    for _ in range(STORM):
        desk.lab.will(status=503)
    noisy = submitted(desk, "noisy", STORM, "look")
    [calm] = submitted(desk, "calm", 1, "look")
    while not served(desk)["calm"]:
        desk.step("reads")
    assert served(desk) == {"noisy": STORM, "calm": 1}, "each of them once: a retry queues up behind what is due"
    assert desk.call(calm).state == "SUCCEEDED"
    for _ in range(TRIES * STORM):
        desk.lab.will(status=503)
    for _ in range(2 * TRIES):
        for operation in noisy:
            desk.hurry(operation)
        while not desk.idle("reads"):
            pass
    assert served(desk) == {"noisy": TRIES * STORM, "calm": 1}, "and then no more"
    assert {desk.call(operation).code for operation in noisy} == {"TOOL_UNAVAILABLE"}


@pytest.mark.parametrize(("tool", "queue"), [("narrow", "reads"), ("single", "writes")])
def test_a_limited_tool_that_fails_for_one_tenant(desk: Desk, tool: str, queue: str) -> None:
    """One slot for all. Whose turn it is is drawn by lot among the tenants that wait, however much each has due, and
    whichever row a message names."""
    for _ in range(STORM):
        desk.lab.will(status=503, effect=False)
    noisy = submitted(desk, "noisy", STORM, tool)
    [calm] = submitted(desk, "calm", 1, tool)
    hints = [row["id"] for operation in noisy for row in desk.sql(
        "SELECT coalesce(a.action_id, c.call_key) AS id FROM calls c LEFT JOIN actions a USING (action_id) "
        "WHERE c.operation_id = :o", o=operation,
    )]  # fmt: skip
    for hint in hints:
        assert dispatch.run_one(desk.app, queue, hint)
        if "calm" in served(desk):
            break
    assert served(desk)["calm"] == 1
    assert served(desk)["noisy"] < STORM - 5, "each has half of the turns: 1 in 2^25 that it takes so many"
    assert desk.call(calm).attempts <= 1
