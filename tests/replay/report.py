"""What a replay found: one JSON object for machines, one table for people."""

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class Report:
    """Filled while phases end. `failed` names each task or case that was not as it should be, and why."""

    workload: str
    tasks: int = 0
    passed: int = 0
    failed: list[dict[str, str]] = field(default_factory=list)
    batch_tasks: int = 0
    batch_ok: bool = True
    error_cases: int = 0
    errors_passed: int = 0
    authz_cases: int = 0
    authz_refused: int = 0
    conversations: int = 0
    conversations_passed: int = 0
    kills: int | None = None  # None: nobody was meant to be killed
    duplicate_effects: int = 0
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.failed and self.batch_ok and not self.duplicate_effects

    def fail(self, case: str, wrong: list[str]) -> bool:
        """Note what is wrong with one task or case; returns whether nothing is."""
        if wrong:
            self.failed.append({"id": case, "why": "; ".join(wrong)})
        return not wrong

    def to_json(self) -> dict[str, Any]:
        recorded = {"conversations": self.conversations, "passed": self.conversations_passed}
        return {
            "workload": self.workload,
            "tasks": self.tasks,
            "passed": self.passed,
            "failed": self.failed,
            "batch": {"tasks": self.batch_tasks, "ok": self.batch_ok},
            "errors": {"cases": self.error_cases, "passed": self.errors_passed},
            "authz": {"cases": self.authz_cases, "refused": self.authz_refused},
            **({"recorded": recorded} if self.conversations else {}),
            **({"kills": self.kills} if self.kills is not None else {}),
            "duplicate_effects": self.duplicate_effects,
            "wall_s": round(self.wall_s, 2),
        }

    def show(self, console: Console) -> None:
        table = Table(title=f"Replay of {self.workload}: {'passed' if self.ok else 'FAILED'}")
        for heading in ("what", "number", "right"):
            table.add_column(heading, justify="left" if heading == "what" else "right")
        table.add_row("tasks", str(self.tasks), str(self.passed))
        table.add_row("tasks in one shared world", str(self.batch_tasks), "yes" if self.batch_ok else "NO")
        table.add_row("error cases", str(self.error_cases), str(self.errors_passed))
        table.add_row("authorization cases", str(self.authz_cases), str(self.authz_refused))
        if self.conversations:
            table.add_row("recorded conversations", str(self.conversations), str(self.conversations_passed))
        if self.kills is not None:
            table.add_row("killed workers", str(self.kills), "")
        table.add_row("duplicate effects", str(self.duplicate_effects), "")
        table.add_row("seconds", f"{self.wall_s:.1f}", "")
        console.print(table)
        for failure in self.failed:
            console.print(f"{failure['id']}: {failure['why']}", markup=False)
