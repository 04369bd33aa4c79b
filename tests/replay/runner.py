"""Plays a workload's operations, many at once, and checks what came of each."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from examples.scripted_model.formats import formats
from tests.replay import checks, jobs, recordings
from tests.replay.checks import Identity, Outcome
from tests.replay.client import Client
from tests.replay.domains import Domain, EffectRow, Records
from tests.replay.jobs import Job
from tests.replay.recordings import Oracle, Recording
from tests.replay.report import Report
from tests.replay.workload import Batch, Call, Task, Workload

OnProgress = Callable[[str, int, int], None]  # phase, done, of how many


class Model(Protocol):
    """The scripted model, as far as the replay needs it."""

    def add(self, *scripts: Mapping[str, Any]) -> None: ...

    def requests(self, script_id: str) -> list[dict[str, Any]]: ...

    def reset(self) -> None: ...


@dataclass(slots=True)
class Runner:
    """`recorded_ids`: recorded conversations keep their call ids. `seconds` bounds one operation, from start to end."""

    workload: Workload
    client: Client
    records: Records
    domain: Domain
    model: Model
    on_progress: OnProgress
    recorded_ids: bool = True
    in_flight: int = 32
    seconds: float = 300.0
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.report = Report(self.workload.folder.name)

    def run(self, *, volume: bool) -> Report:
        """Everything in the folder; the volume set only where asked."""
        started = time.monotonic()
        load = self.workload
        self.tasks("tasks", load.tasks)
        if volume:
            self.tasks("volume tasks", load.volume)
        self.batch("batch", load.batch)
        if volume and load.volume_batch is not None:
            self.batch("volume batch", load.volume_batch)
        self.error_cases()
        self.authz_cases()
        recorded = recordings.load(load.folder)
        if not self.recorded_ids:
            recorded = tuple(each.with_ids_of_the_service() for each in recorded)
        self.conversations(recorded)
        self.report.wall_s = time.monotonic() - started
        return self.report

    def tasks(self, phase: str, tasks: Sequence[Task]) -> None:
        """Each task in a world of its own."""
        outcomes = self._play(phase, [jobs.task_job(task, self.domain.any_scope) for task in tasks])
        ledger = self._ledger([task.id for task in tasks])
        for task in tasks:
            wrong = self._answers(outcomes[task.id], partial(checks.task_wrong, task))
            wrong += self._state(task.id, task.final_digest)
            wrong += self._effects(ledger[task.id], checks.effects_wanted([task]))
            self.report.passed += self.report.fail(task.id, wrong)
        self.report.tasks += len(tasks)

    def batch(self, phase: str, batch: Batch) -> None:
        """All tasks at the same time in one shared world, against the one digest."""
        world = phase.replace(" ", "-")
        outcomes = self._play(phase, [jobs.task_job(task, self.domain.any_scope, world) for task in batch.tasks])
        right = True
        for task in batch.tasks:
            name = f"{world}.{task.id}"
            wrong = self._answers(outcomes[name], partial(checks.task_wrong, task))
            right &= self.report.fail(name, wrong)
        rows = self._ledger([world])[world]
        wrong = self._state(world, batch.final_digest) + self._effects(rows, checks.effects_wanted(batch.tasks))
        right &= self.report.fail(world, wrong)
        self.report.batch_tasks += len(batch.tasks)
        self.report.batch_ok &= right

    def error_cases(self) -> None:
        """The setup first, in operations of its own; then the call that the domain refuses, in the same world."""
        cases = self.workload.errors
        self._play("setup of error cases", jobs.setup_jobs(cases, self.domain.any_scope))
        outcomes = self._play("error cases", [jobs.error_job(case, self.domain.any_scope) for case in cases])
        ledger = self._ledger([case.id for case in cases])
        for case in cases:
            wrong = self._answers(outcomes[case.id], partial(checks.error_wrong, case))
            wrong += self._state(case.id, case.digest) + self._effects(ledger[case.id], _identities(case.setup))
            self.report.errors_passed += self.report.fail(case.id, wrong)
        self.report.error_cases += len(cases)

    def authz_cases(self) -> None:
        """Somebody else's record: refused, nothing tried, nothing changed."""
        cases = self.workload.authz
        outcomes = self._play("authorization cases", [jobs.authz_job(case) for case in cases])
        ledger = self._ledger([case.id for case in cases])
        for case in cases:
            wrong = self._answers(outcomes[case.id], partial(checks.authz_wrong, case))
            wrong += self._state(case.id, case.digest) + self._effects(ledger[case.id], Counter())
            self.report.authz_refused += self.report.fail(case.id, wrong)
        self.report.authz_cases += len(cases)

    def conversations(self, recorded: Sequence[Recording]) -> None:
        """Real models' conversations, each in a world of its own: see `recordings`."""
        oracle = Oracle(self.domain, self.workload)
        wanted = {each.id: oracle.expect(each) for each in recorded}
        outcomes = self._play("recorded conversations", [each.job(wanted[each.id].subject) for each in recorded])
        ledger = self._ledger([each.id for each in recorded])
        for name, expected in wanted.items():
            shown = self._shown(name) if outcomes[name] else ()
            wrong = self._answers(outcomes[name], partial(checks.recording_wrong, expected, shown=shown))
            wrong += self._state(name, expected.digest) + self._effects(ledger[name], expected.effects)
            self.report.conversations_passed += self.report.fail(name, wrong)
        self.report.conversations += len(recorded)

    def _shown(self, script: str) -> Sequence[str]:
        """The results in the last request to the model, in call order."""
        last = self.model.requests(script)[-1]
        wire = next(each for each in formats() if each.claims(last["path"]))
        return wire.read(last["path"], last["body"]).outputs

    def _play(self, phase: str, todo: Sequence[Job]) -> dict[str, Outcome | None]:
        """Run the jobs, at most `in_flight` at once; None: it did not end in time."""
        self.model.reset()  # it remembers every request; nobody asks for those of an earlier phase
        self.model.add(*(job.script() for job in todo))
        return dict(self._ended(phase, todo))

    def _ended(self, phase: str, todo: Sequence[Job]) -> Iterator[tuple[str, Outcome | None]]:
        with ThreadPoolExecutor(self.in_flight) as pool:
            running = {pool.submit(self._one, job): job for job in todo}
            for done, future in enumerate(as_completed(running), 1):
                self.on_progress(phase, done, len(todo))
                yield running[future].id, future.result()

    def _one(self, job: Job) -> Outcome | None:
        return self.client.wait(job.world, self.client.submit(job), time.monotonic() + self.seconds)

    def _answers(self, outcome: Outcome | None, check: Callable[[Outcome], list[str]]) -> list[str]:
        return check(outcome) if outcome is not None else [f"did not end within {self.seconds:g} s"]

    def _state(self, world: str, wanted: str) -> list[str]:
        return [] if self.records.state_digest(world) == wanted else ["another final state"]

    def _effects(self, rows: Sequence[EffectRow], wanted: Counter[Identity]) -> list[str]:
        self.report.duplicate_effects += checks.count_duplicates(rows, wanted)
        return checks.effects_wrong(rows, wanted)

    def _ledger(self, worlds: Sequence[str]) -> dict[str, list[EffectRow]]:
        rows: dict[str, list[EffectRow]] = defaultdict(list)
        for row in self.records.effects(worlds):
            rows[row.world].append(row)
        return rows


def _identities(calls: Sequence[Call]) -> Counter[Identity]:
    return Counter(call.identity for call in calls)
