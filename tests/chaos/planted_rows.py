"""Bugs around leases and fences, limits, reads and fan-in, wake-ups, the audit, and who sees what."""

from tests.chaos.planted_hook import Bug, bug

_CALLS, _OPERATIONS, _SWEEPER = "store.calls", "store.operations", "orchestrator.sweeper"

ROWS: dict[str, Bug] = {
    # --- leases and fences ---
    "fence_stands_still": bug(
        "Starting a write does not raise its fence.",
        "unreachable", "I11",
        ("store.actions", "UPDATE actions a SET state = 'STARTED', fence = fence + 1,",
         "UPDATE actions a SET state = 'STARTED', fence = fence,"),
    ),
    "fence_of_turns_stands_still": bug(
        "Claiming a turn does not raise the operation's fence.",
        "zombie_turns", "I11",
        (_OPERATIONS, "state = 'MODEL_REQUESTED', fence = fence + 1,", "state = 'MODEL_REQUESTED', fence = fence,"),
    ),
    "turn_without_fence": bug(
        "A reply is recorded whoever has the turn by now, and so are its calls, once more.",
        "zombie_turns", "crash rest I1 I2 I11",
        (_OPERATIONS, "return held if held.fence == fence and held.state is OperationState.MODEL_REQUESTED else None",
         "return held"),
    ),
    "read_without_fence": bug(
        "Whoever comes back records a read's result.",
        "zombie_reads", "I11 I5 I2 rest",
        (_CALLS, "AND state = 'RUNNING' AND fence = :fence\n        RETURNING call_key, operation_id",
         "AND state = 'RUNNING' AND CAST(:fence AS bigint) > 0\n        RETURNING call_key, operation_id"),
    ),
    "lease_never_renewed": bug(
        "Leases are not renewed.",
        "slow", "I2 rest",
        ("orchestrator.leases", "                self._renew(kind)\n", "                pass\n"),
    ),
    "sweeper_without_compare": bug(
        "The sweeper gives up what it listed a moment ago, whoever has it by now.",
        "stale_sweeper", "I11",
        (_SWEEPER, "        if current.fence != action.fence or current.state is not ActionState.STARTED:\n"
                   "            return False\n", ""),
        (_SWEEPER, "        if not actions.lease_expired(unit.connection, action.action_id):\n"
                   "            return False\n", ""),
    ),
    "sweeper_takes_from_the_living": bug(
        "The sweeper gives up every write that is being sent.",
        "slow", "I11",
        ("store.actions", "c.state = 'STARTED' AND c.lease_until < clock_timestamp()", "c.state = 'STARTED'"),
        (_SWEEPER, "        if not actions.lease_expired(unit.connection, action.action_id):\n"
                   "            return False\n", ""),
    ),
    # --- limits ---
    "limit_is_off_by_one": bug(
        "There is one slot more than the limit.",
        "limits", "I6",
        ("store.slots", "generate_series(1, :limit)", "generate_series(0, :limit)"),
    ),
    "slot_for_the_lease_only": bug(
        "A slot is free again when a lease would have run out, not when its request must be over.",
        "limits", "I6",
        ("orchestrator.writes", "slot_lease=spec.timeout + slots.GRACE_SECONDS,",
         "slot_lease=app.settings.lease_seconds,"),
    ),
    "lost_slot_is_free": bug(
        "The slot of a dead worker is free at once, while its request may still be served.",
        "killed_at_work", "I6",
        ("store.actions", "        slots.keep(connection, action_id)\n", "        slots.free(connection, action_id)\n"),
    ),
    "slot_without_lock": bug(
        "Two claims at once find the same slot free and both take it.",
        "start_together", "I6",
        ("store.slots", "ORDER BY s.slot LIMIT 1 FOR UPDATE OF s SKIP LOCKED)", "ORDER BY s.slot LIMIT 1)"),
    ),
    "read_attempts_without_end": bug(
        "A read that fails is tried again as long as it takes.",
        "exhausted", "I7",
        ("orchestrator.reads", 'if row["attempts"] >= limit or delay', "if delay"),
    ),
    # --- fan-in and wake-ups ---
    "counted_outside": bug(
        "The count of open reads is saved in a transaction of its own, before the result.",
        "zombie_reads", "I2 crash rest",
        ("orchestrator.reads",
         "    operation = operations.count_read(  # takes the operation's lock, so its revision stands from here on\n"
         "        unit.connection,\n",
         "    with unit.connection.engine.begin() as other:\n"
         "      operation = operations.count_read(\n"
         "        other,\n"),
    ),
    "last_result_is_nobodys": bug(
        "The turn's last read does not move the operation on while a write of the turn waits.",
        "hints_only", "I2 rest",
        ("orchestrator.reads", "    if operation.open_reads == 0:\n", "    if operation.open_calls == 0:\n"),
    ),
    "publish_before_commit": bug(
        "The hints of a reply go out before its calls are there to be found.",
        "alone", "rest",
        ("orchestrator.turn", "                recording.proposals(unit, loaded, held, asked, verdicts, bench)\n",
         "                recording.proposals(unit, loaded, held, asked, verdicts, bench)\n"
         "                app.publish(unit.wakes)\n"
         "                unit.wakes.clear()\n"),
    ),
    "hint_is_the_truth": bug(
        "Whoever publishes a hint of a turn leaves no time at which it is due.",
        "flushed", "I2 rest",
        ("orchestrator.engine", '                changes["wake_at"] = at\n',
         '                changes["wake_at"] = None if at <= operation.now else at\n'),
        (_OPERATIONS, "state IN ('READY', 'RESULTS_READY') AND wake_at <= clock_timestamp()",
         "state IN ('READY', 'RESULTS_READY') AND (wake_at IS NULL OR wake_at <= clock_timestamp())"),
    ),
    "lost_turn_is_not_due": bug(
        "A turn whose worker died is ready again, but never due.",
        "flushed", "I2 rest",
        ("orchestrator.domain.operation",
         "return OperationDecision(S.READY, effects=(WakeAt(event.again_at or now),))",
         "return OperationDecision(S.READY)"),
    ),
    "reads_are_not_republished": bug(
        "The sweeper forgets the reads whose hint was lost.",
        "flushed", "rest",
        (_SWEEPER, "for rows in (calls.due(connection, BATCH), actions.due(connection, BATCH)):",
         "for rows in (actions.due(connection, BATCH),):"),
    ),
    # --- the audit ---
    "no_lock": bug(
        "The operation's row is read without locking it: counts and the audit's head may be old.",
        "record_together", "crash I2 I8 rest",
        (_OPERATIONS, 'WHERE operation_id = :operation_id FOR UPDATE")', 'WHERE operation_id = :operation_id")'),
    ),
    "chain_from_the_beginning": bug(
        "Each transaction's entries are linked to the genesis instead of the last link.",
        "hints_only", "I8",
        ("store.audit", "coalesce(h.seq, 0) AS seq, coalesce(h.sha256, :genesis) AS sha256",
         "coalesce(h.seq, 0) AS seq, CAST(:genesis AS text) AS sha256"),
    ),
    # --- who asks, and who sees ---
    "key_is_ignored_at_submit": bug(
        "A submission with a key that was used makes another operation.",
        "submits", "I1",
        ("orchestrator.commands", "caller_key=request.idempotency_key,", "caller_key=None,"),
    ),
    "key_answers_any_request": bug(
        "A key that was used gives its operation for whatever request comes with it.",
        "submits", "I2",
        ("orchestrator.commands", "    if found[1] != request_sha256:\n", "    if False:\n"),
    ),
    "shown_to_another_tenant": bug(
        "Looking at an operation, or cancelling it, does not ask whose it is.",
        "submits", "I9",
        ("orchestrator.commands", "if found is None or (tenant is not None and found.tenant != tenant):",
         "if found is None:"),
    ),
    "listed_for_another_tenant": bug(
        "The list of operations has everybody's.",
        "submits", "I9",
        (_OPERATIONS, "WHERE (CAST(:tenant AS text) IS NULL OR tenant = :tenant) AND",
         "WHERE (CAST(:tenant AS text) IS NULL OR TRUE) AND"),
    ),
    "runs_as_another_tenant": bug(
        "A worker remembers who somebody is by the name alone, which another tenant may use too.",
        "hints_only", "I9",
        ("orchestrator.reads", '    principal = Principal(row["tenant"], row["subject"], frozenset(row["scopes"]))\n',
         '    principal = Principal(row["tenant"], row["subject"], frozenset(row["scopes"]))\n'
         '    principal = _KNOWN.setdefault(row["subject"], principal)\n'),
        ("orchestrator.reads", "def _read_outcome(", "_KNOWN: dict[str, Principal] = {}\n\n\ndef _read_outcome("),
    ),
}  # fmt: skip
