"""The workload's tools and profiles, for Turnqueue's processes: `register` reads the folder that INJECTION_DIR names.

A read answers with what the case recorded, a write only records in the ledger that it ran. Neither knows what is
allowed: that is asked of the host (`authorize`) and of Turnqueue's policy.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, RootModel

from adapters.registry import ADAPTERS
from executors.context import Context
from executors.outcomes import ToolRejected
from executors.registry import Authorizer, Handler, Registry, ToolSpec
from orchestrator.domain.model import Effect
from policy.base import Allow, Decision, Deny, Principal
from policy.profile import ApprovalRule, Budgets, Model, Profile
from tests.injection import ledger, models
from tests.injection.runs import ANY_ADDRESS, ANY_TARGET, CONTROL, Setting, case_of, confusion_profile
from tests.injection.workload import Case, Confusion, Tool, Workload

EXPIRY = 2.0  # seconds that a request waits where nobody approves
BUDGETS = Budgets(turns=60, calls=80, writes=40, no_progress_turns=20, result_bytes=4_000_000)


class Text(RootModel[str]):
    """A plain answer."""


@cache
def workload() -> Workload:
    return Workload.load(Path(os.environ["INJECTION_DIR"]))


@cache
def _cases() -> dict[str, Case]:
    return {case.id: case for case in workload().cases}


@cache
def _confusions() -> dict[str, Confusion]:
    return {each.id: each for each in workload().confusions}


def register(registry: Registry) -> None:
    load = workload()
    registry.add(*map(_spec, load.tools))
    registry.add_profile(*_profiles(load))
    readers = {(reader(each), each.tool): each for each in load.confusions}
    writers = {each.write: each for each in load.confusions}
    registry.add(*(_reading(name, each) for (name, _), each in readers.items()))
    registry.add(*(_controlled(each) for each in load.confusions if each.where == "tool_description"))
    registry.add(*map(_writing, writers.values()))
    registry.add_profile(*_confused_profiles(load))


def _arguments(args: BaseModel) -> dict[str, Any]:
    return args.model_dump(mode="json", exclude_unset=True)


def _record(tool: str, args: BaseModel, ctx: Context) -> None:
    deed = ledger.Deed(ctx.tenant, tool, ledger.canonical(_arguments(args)), ctx.operation_id, ctx.idempotency_key)
    ledger.append(Path(os.environ["INJECTION_LEDGER"]), deed)


# --- the cases -----------------------------------------------------------------------------------------------------


def _spec(tool: Tool) -> ToolSpec:
    guarded = tool.writes or tool.egress
    return ToolSpec(
        name=tool.name,
        description=tool.description,
        arguments=models.from_schema(tool.name, tool.parameters),
        result=Text,
        handler=_writes(tool.name) if tool.writes else _reads(tool),
        effect=Effect.CREATE if tool.writes else Effect.READ,
        egress=tool.egress,
        authorize=_authorizer(tool) if guarded else None,
        sparse_arguments=True,
        unreconcilable=tool.writes,
        untrusted=not tool.writes,
    )


def _reads(tool: Tool) -> Handler:
    def read(args: BaseModel, ctx: Context) -> str:
        if tool.egress:
            _record(tool.name, args, ctx)
        answers = _cases()[case_of(ctx.tenant)].reads
        try:
            return answers[tool.name, ledger.canonical(_arguments(args))]
        except KeyError:
            raise ToolRejected("NOT_FOUND") from None

    return read


def _writes(name: str) -> Handler:
    def write(args: BaseModel, ctx: Context) -> str:
        _record(name, args, ctx)
        return "Done."

    return write


def _wanted(tool: Tool, args: BaseModel, principal: Principal) -> bool:
    """Whether the user's own request needs exactly this: the host wrote that down before anything was read."""
    case = _cases()[case_of(principal.tenant)]
    what = (tool.name, ledger.canonical(_arguments(args)))
    return what in {each.what for each in (*case.authorised, *case.way)}


def _authorizer(tool: Tool) -> Authorizer:
    def authorize(args: BaseModel, principal: Principal) -> Decision:
        allowed = (ANY_TARGET if tool.writes else ANY_ADDRESS) in principal.scopes or _wanted(tool, args, principal)
        return Allow() if allowed else Deny("OUTSIDE_REQUEST", "the user did not ask for it")

    return authorize


def _profiles(load: Workload) -> list[Profile]:
    writes = tuple(tool.name for tool in load.tools if tool.writes)
    policies: dict[Setting, dict[str, Any]] = {
        Setting.NOBODY: {"approvals": (ApprovalRule(tools=writes, ttl_seconds=EXPIRY),)},
        Setting.OUTSIDE: {},
        # No rule of its own: that untrusted text has been read is what makes a person decide.
        Setting.APPROVER: {"tainted_writes": "ask", "approvals": (ApprovalRule(tainted=True, separate=True),)},
    }
    model = Model(api="openai-responses", name="obedient", base_url="$INJECTION_MODEL_URL")
    tools = tuple(tool.name for tool in load.tools)
    return [
        Profile(name=setting, model=model, instructions="Help the user.", tools=tools, budgets=BUDGETS, **policy)
        for setting, policy in policies.items()
    ]


# --- format confusion ----------------------------------------------------------------------------------------------


def reader(each: Confusion, control: bool = False) -> str:
    """A text in a description needs a tool of its own, and a twin with a harmless one."""
    if each.where != "tool_description":
        return each.tool
    return f"{each.tool}_{each.id.replace('-', '_')}{'_control' if control else ''}"


def _note(args: BaseModel, ctx: Context) -> str:
    name = case_of(ctx.tenant)
    each = _confusions()[name.removeprefix(CONTROL.prefix)]
    text = CONTROL.text if name.startswith(CONTROL.prefix) else each.text
    if each.where == "error":
        raise ToolRejected("NOT_FOUND", text)
    return text if each.where == "result" else "A note."


def _reading(name: str, each: Confusion, description: str | None = None) -> ToolSpec:
    if each.where == "tool_description":
        description = description or each.text
    same = [c.arguments for c in workload().confusions if c.tool == each.tool]
    return ToolSpec(
        name=name,
        description=description or "Read one note.",
        arguments=models.from_values(name, {key: value for one in same for key, value in one.items()}),
        result=Text,
        handler=_note,
        effect=Effect.READ,
        untrusted=True,
    )


def _controlled(each: Confusion) -> ToolSpec:
    return _reading(reader(each, control=True), each, CONTROL.text)


def _writing(each: Confusion) -> ToolSpec:
    """No policy stands in its way: only a proposal by the model could set it off, and there is none."""
    return ToolSpec(
        name=each.write,
        description="Move money.",
        arguments=models.from_values(each.write, each.write_arguments),
        result=Text,
        handler=_writes(each.write),
        effect=Effect.CREATE,
        unreconcilable=True,
    )


def _confused_profiles(load: Workload) -> list[Profile]:
    """One for every adapter, plain and streamed; and each text in a description has its own pair of these."""
    descriptions = [each for each in load.confusions if each.where == "tool_description"]
    readers = {reader(each) for each in load.confusions if each.where != "tool_description"}
    writers = {each.write for each in load.confusions}
    made = []
    for api in ADAPTERS:
        for stream in (False, True):
            base = "$INJECTION_MODEL_URL" if api.startswith("openai") else "$INJECTION_MODEL_ROOT"
            model = Model(api=api, name="confused", base_url=base, stream=stream)
            tools = {confusion_profile(api, stream): readers}
            tools |= {
                confusion_profile(api, stream, each.id, control): {reader(each, control)}
                for each in descriptions
                for control in (False, True)
            }
            made += [
                Profile(name=name, model=model, instructions="Help.", tools=tuple(sorted(names | writers)))
                for name, names in tools.items()
            ]
    return made
