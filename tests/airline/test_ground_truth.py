"""Every task, error case and authorization case of the benchmark, straight against the airline on PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor

from examples.worlds.storage import Store
from tests.replay.desk import Answer, Desk
from tests.replay.workload import Task, Workload, digest


def effects_wrong(store: Store, world: str, *tasks: Task) -> bool:
    """Whether the ledger differs from the writes that the ground truth says succeed."""
    wanted = sorted(a.call.identity for t in tasks for a in t.actions if a.writes and a.error is None)
    return sorted((e.tool, e.arguments_digest) for e in store.effects([world])) != wanted


def test_every_task_gives_the_known_results_and_state(desk: Desk, store: Store, workload: Workload) -> None:
    wrong = []
    for task in workload.tasks:
        wrong += desk.play(task.id, task)
        if store.state_digest(task.id) != task.final_digest:
            wrong.append(f"{task.id}: other final state")
        if effects_wrong(store, task.id, task):
            wrong.append(f"{task.id}: other effects")
    assert not wrong
    assert len(workload.tasks) == 35


def test_a_batch_at_the_same_time_gives_the_one_known_state(desk: Desk, store: Store, workload: Workload) -> None:
    batch = workload.batch
    with ThreadPoolExecutor(16) as pool:
        wrong = [w for found in pool.map(lambda task: desk.play("batch", task), batch.tasks) for w in found]
    assert not wrong
    assert store.state_digest("batch") == batch.final_digest
    assert not effects_wrong(store, "batch", *batch.tasks)


def test_every_error_case_is_refused_with_its_text(desk: Desk, store: Store, workload: Workload) -> None:
    for case in workload.errors:
        for call in case.setup:
            assert desk.call(case.id, call, None).error is None, case.id
        before = store.effects([case.id])
        assert desk.call(case.id, case.call, None) == Answer(error=case.error), case.id
        assert store.state_digest(case.id) == case.digest, case.id
        assert store.effects([case.id]) == before, case.id


def test_every_call_on_somebody_elses_record_is_stopped(desk: Desk, store: Store, workload: Workload) -> None:
    for case in workload.authz:
        assert desk.call(case.id, case.call, case.subject) == Answer(stopped="FORBIDDEN_RESOURCE"), case.id
    assert store.effects([case.id for case in workload.authz]) == []
    assert {store.state_digest(case.id) for case in workload.authz} == {workload.base_digest}


def test_the_state_digest_is_that_of_the_whole_state(store: Store, workload: Workload) -> None:
    assert store.state_digest("untouched") == digest(workload.state()) == workload.base_digest
