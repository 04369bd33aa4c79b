"""Bugs in how writes are started, sent, recorded and looked into, and in approvals."""

from tests.chaos.planted_hook import Bug, bug

_WRITES, _RUN = "orchestrator.writes", "executors.run"

WRITES: dict[str, Bug] = {
    # --- the record that comes first ---
    "started_after_send": bug(
        "The request leaves inside the transaction that records `started`, before its commit.",
        "zombies", "I1 I4 I5",
        (_WRITES, "    objection = _objection_of_resource(spec, action, operation)\n",
         "    objection, sent = _objection_of_resource(spec, action, operation), []\n"),
        (_WRITES, "                return _mark_started(app, unit, spec, current, held), unit.wakes, True\n",
         "                begun = _mark_started(app, unit, spec, current, held)\n"
         "                with app.leases.hold('action', action.action_id, begun.action.fence, since) as lease:\n"
         "                    sent.append(_write_outcome(app, spec, begun, lease))\n"
         "                return begun, unit.wakes, True\n"),
        (_WRITES, 'outcome = _write_outcome(app, spec, started, lease) if lease.held() else Unsent("LEASE_LOST")',
         "outcome = sent[-1]"),
    ),
    "audit_in_another_transaction": bug(
        "The entry `action.started` is written in a transaction of its own, after the start.",
        "zombies", "I4 I8 I10",
        (_WRITES, "    unit.audit(\n        action.operation_id, \"action.started\"",
         "    dict(\n        operation_id=action.operation_id, kind=\"action.started\""),
        (_WRITES, "kind=\"action.started\", action.action_id, tool", "kind=\"action.started\", tool"),
        (_WRITES, "    failpoint(\"write.after_started\")\n",
         "    failpoint(\"write.after_started\")\n"
         "    with app.database.transaction() as connection:\n"
         "        operations.lock(connection, action.operation_id)\n"
         "        engine.Unit(connection, f\"worker:{app.worker}\").audit(\n"
         "            action.operation_id, \"action.started\", action.action_id, tool=action.tool,\n"
         "            key=action.idempotency_key, arguments_sha256=action.arguments_sha256, digest=action.digest,\n"
         "            attempt_id=started.attempt_id, attempt=action.attempts + 1, contacted=False,\n"
         "        )\n"),
    ),
    "no_last_look_at_the_lease": bug(
        "A worker sends although its lease may have run out since `started`.",
        "zombies", "I4",
        (_WRITES, ' if lease.held() else Unsent("LEASE_LOST")', ""),
        ("executors.http", "if not self.held():", "if False:"),
    ),
    "key_changes_between_attempts": bug(
        "Each attempt has an idempotency key of its own.",
        "uncertain", "I1 I4 I5",
        (_WRITES, '"idempotency_key": action.idempotency_key,\n    }  # fmt: skip',
         '"idempotency_key": f"{action.idempotency_key}-{action.attempts}",\n    }  # fmt: skip'),
    ),
    "cancelled_still_starts": bug(
        "Cancelling stops no writes that wait, and their start does not ask whether the operation has ended.",
        "cancelled", "I4",
        ("orchestrator.engine", "for action in actions.unstarted(unit.connection, operation.operation_id):",
         "for action in ():"),
        (_WRITES, "if operation.state in TERMINAL:", "if False:"),
    ),
    "amended_still_starts": bug(
        "A correction stops no writes that wait, and their start does not ask for which request they were.",
        "amended", "I4",
        ("orchestrator.engine", "for action in actions.unstarted(unit.connection, operation.operation_id):",
         "for action in ():"),
        (_WRITES, "if operation.revision != action.revision:", "if False:"),
        (_WRITES, "    digest = recording.action_digest(\n        operation, spec,",
         "    digest = recording.action_digest(\n        replace(operation, revision=action.revision), spec,"),
    ),
    "writes_out_of_turn": bug(
        "A write does not wait for those before it in its turn.",
        "racing", "I4",
        ("orchestrator.fanout", "case ActionState.READY if gated and waiting:", "case ActionState.READY if False:"),
    ),
    "goes_on_after_a_failure": bug(
        "The later writes of a turn go on after one that failed or is unknown.",
        "refused", "I4",
        ("orchestrator.fanout",
         "broken = broken or write.state in (ActionState.FAILED, ActionState.REJECTED, ActionState.UNKNOWN)",
         "broken = False"),
    ),
    "same_intent_twice": bug(
        "A write that was made before in this operation is made again.",
        "hints_only", "I1",
        ("orchestrator.judge", "    if standing:\n", "    if False:\n"),
    ),
    # --- what an outcome means ---
    "outcome_without_fence": bug(
        "Whoever comes back records an outcome, whoever has the action by now.",
        "zombies", "I5 I11 I1",
        (_WRITES, "if current.fence != action.fence or current.state is not ActionState.STARTED:",
         "if current.state is not ActionState.STARTED:"),
    ),
    "timeout_is_failure": bug(
        "A request without an answer has failed.",
        "uncertain", "I5 I1",
        (_RUN, 'except ToolUnavailable:\n        return Lost("TOOL_UNAVAILABLE")',
         'except ToolUnavailable:\n        return Rejected("TOOL_UNAVAILABLE", "")'),
    ),
    "status_is_proof": bug(
        "A 5xx, or any answer that the tool calls unavailable, proves that nothing was applied.",
        "uncertain", "I5 I1",
        (_RUN, 'except ToolUnavailable:\n        return Lost("TOOL_UNAVAILABLE")',
         'except ToolUnavailable as failure:\n'
         '        return Unsent("REFUSED") if "status" in str(failure) else Lost("TOOL_UNAVAILABLE")'),
    ),
    "garbage_is_failure": bug(
        "An answer that does not fit its schema has failed.",
        "uncertain", "I5 I1",
        (_RUN, 'return Lost("INVALID_TOOL_RESULT")', 'return Rejected("INVALID_TOOL_RESULT", "")'),
        (_RUN, 'return Lost("TOOL_ERROR")', 'return Rejected("TOOL_ERROR", "")'),
    ),
    "reset_is_not_sent": bug(
        "A connection that broke while the answer was awaited counts as one that never was.",
        "uncertain", "I5 I1",
        ("executors.http", "_NOTHING_SENT = (httpx.ConnectError, ",
         "_NOTHING_SENT = (httpx.ReadError, httpx.RemoteProtocolError, httpx.ConnectError, "),
    ),
    "resend_on_absence": bug(
        "The downstream knows nothing of it, so it is sent again.",
        "uncertain", "I1",
        ("orchestrator.consequences", "again = live and may_repeat(spec, action, now) and _is_conclusive",
         "again = live and _is_conclusive"),
        (_WRITES, " or _forgotten(unit, spec, current, held)", ""),
    ),
    "resend_without_a_key": bug(
        "An uncertain write is sent again where the downstream enforces no key.",
        "uncertain", "I1",
        ("policy.retry", "if key_retention is not None and now < first_started + key_retention:",
         "if key_retention is None or now < first_started + key_retention:"),
    ),
    "unsent_forgets": bug(
        "When the last attempt does not get out, the action has failed, whatever became of earlier ones.",
        "unreachable", "I5",
        ("orchestrator.consequences", "if at is None and actions.may_have_arrived(unit.connection, action.action_id):",
         "if False:"),
    ),
    "withdrawal_forgets": bug(
        "A write that waits to be sent again and must not any more was never sent.",
        "withdrawn", "I5 I10",
        ("orchestrator.engine", "if action.attempts and actions.may_have_arrived(unit.connection, action.action_id):",
         "if False:"),
    ),
    "attempts_without_end": bug(
        "An uncertain write is sent again as long as it takes.",
        "exhausted", "I7",
        ("policy.retry", "if attempts >= limit or first_started is None:", "if first_started is None:"),
    ),
    "commit_error_is_failure": bug(
        "When the transaction of the outcome fails, the write has failed.",
        "commits", "I5 I1",
        (_WRITES, "    wakes = app.database.transact(work, again=app.settings.lease_seconds)\n"
                  "    failpoint(\"write.recorded\")",
         "    try:\n"
         "        with app.database.transaction() as connection:\n"
         "            wakes = work(connection)\n"
         "    except Exception:\n"
         "        outcome = Rejected(\"NOT_RECORDED\", \"\")\n"
         "        wakes = app.database.transact(work)\n"
         "    failpoint(\"write.recorded\")"),
    ),
    "started_again_after_commit_error": bug(
        "When the answer to the commit of `started` is lost, the action goes back to be started again.",
        "commits", "I1 I5 I11 I10 crash rest",
        (_WRITES, "    except _NoSlot:\n        _raise_halt(app)\n",
         "    except Unavailable:\n"
         "        def back(connection):\n"
         "            actions.end_attempt(connection, action.action_id, state='NOT_SENT', code=None, contacted=False)\n"
         "            row = replace(actions.lock(connection, action.action_id))\n"
         "            actions.save(connection, row, state=ActionState.READY, wake_at=operation.now)\n"
         "        app.database.transact(back)\n"
         "        return False\n"
         "    except _NoSlot:\n        _raise_halt(app)\n"),
        ("store.db", "                if self._happened(tried.link, lost):\n", "                raise\n"
         "                if self._happened(tried.link, lost):\n"),
    ),
    # --- approvals ---
    "approval_of_a_tool": bug(
        "An approval counts for every call of its tool in the operation.",
        "wavering", "I4",
        ("store.approvals", '"SELECT * FROM approvals WHERE action_id = :action_id ORDER BY created_at DESC LIMIT 1"',
         '"SELECT p.* FROM approvals p JOIN actions a USING (action_id) WHERE (a.operation_id, a.tool) = ('
         'SELECT operation_id, tool FROM actions WHERE action_id = :action_id) '
         "ORDER BY p.state IN ('APPROVED', 'CONSUMED') DESC, p.created_at DESC LIMIT 1\""),
        ("orchestrator.people", "        settled = engine.save_action(unit, operation, action, e.Approved())\n",
         "        for same in actions.of_operation(unit.connection, operation.operation_id):\n"
         "            if same.tool == action.tool:\n"
         "                settled += engine.save_action(unit, operation, same, e.Approved())\n"),
        (_WRITES, 'return None if action.attempts and approval.action_digest == digest else "APPROVAL_USED"',
         "return None"),
        (_WRITES, "bound = approval.binding(digest)", "bound = approval.bound_sha256"),
        ("store.approvals", "AND expires_at > clock_timestamp() AND action_digest = :digest",
         "AND expires_at > clock_timestamp() AND CAST(:digest AS text) IS NOT NULL"),
    ),
    "approval_without_digest": bug(
        "The start does not compare what was approved with what is to be done.",
        "altered", "I4",
        (_WRITES, "    if digest != action.digest:\n        return \"ACTION_CHANGED\"\n", ""),
        (_WRITES, "bound = approval.binding(digest)", "bound = approval.bound_sha256"),
        ("store.approvals", "AND expires_at > clock_timestamp() AND action_digest = :digest",
         "AND expires_at > clock_timestamp() AND CAST(:digest AS text) IS NOT NULL"),
    ),
    "approval_not_used_up": bug(
        "The start does not consume the approval.",
        "approvals", "I4",
        (_WRITES, 'return None if approvals.consume(unit.connection, approval, digest=digest) else "APPROVAL_INVALID"',
         "return None"),
    ),
    "expired_approval_counts": bug(
        "An approval that has run out since it was given still starts its action.",
        "expired", "I4",
        (_WRITES, "if approval.state is ApprovalState.APPROVED and approval.expires_at <= operation.now:", "if False:"),
        ("store.approvals", "AND expires_at > clock_timestamp() AND action_digest = :digest",
         "AND action_digest = :digest"),
    ),
    "one_approval_is_enough": bug(
        "Where two people must approve, the first one's yes starts it.",
        "approvals", "I4",
        ("orchestrator.people", "if len(have) >= approval.approvers:", "if have:"),
        (_WRITES, "if bound != approval.bound_sha256 or len(approved) < approval.approvers:",
         "if bound != approval.bound_sha256:"),
    ),
    "requester_approves": bug(
        "Who asked for it counts as one of those who must approve it.",
        "approvals", "I4",
        ("policy.approvals", "        and not (separate and vote.by == requester)\n", ""),
        ("orchestrator.people", "if kind is DecisionKind.APPROVE and approval.separate and by == approval.requester:",
         "if False:"),
    ),
    "decided_by_another_tenant": bug(
        "Deciding does not ask whose approval it is.",
        "approvals", "I9",
        ("orchestrator.people", "        if tenant is not None and known.tenant != tenant:\n", "        if False:\n"),
    ),
}  # fmt: skip
