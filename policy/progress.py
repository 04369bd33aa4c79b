"""The loop guard: which turns brought something new? Pure, over what the calls of an operation asked and got.

New information is an answer that was not there before: a result with other content, a write that succeeded, an error
of another kind. Asking the same again and getting the same, one error after the other, or a pair of questions in turns
is none. One repeat of anything is allowed: a second look can be sensible.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

LOOKS_ALLOWED = 2  # how often the same information counts as new: the first time and one repeat
ASKS_ALLOWED = 3  # how often one read may be answered alike before it is refused with NO_PROGRESS


@dataclass(frozen=True, slots=True)
class Answered:
    """One call of an earlier turn. `result_sha256` is None while it has no result; `code` is set for errors."""

    turn: int
    tool: str
    arguments_sha256: str
    result_sha256: str | None
    code: str | None
    duplicate: bool = False  # a suppressed duplicate: its result is an old one

    @property
    def tells(self) -> bool:
        """A suppressed duplicate and our own refusal to ask again say nothing about the world."""
        return not self.duplicate and self.code != "NO_PROGRESS"

    @property
    def information(self) -> Hashable:
        """What the model learned: the kind of error, or exactly this answer to exactly this question."""
        if self.code is not None:
            return (self.tool, self.code)
        return (self.tool, self.arguments_sha256, self.result_sha256)


def stale_turns(calls: Sequence[Answered]) -> int:
    """How many turns in a row, up to the last one, brought nothing new. `calls` in transcript order."""
    seen: Counter[Hashable] = Counter()
    stale = 0
    for turn in sorted({call.turn for call in calls}):
        learned = [call.information for call in calls if call.turn == turn and call.tells]
        stale = 0 if any(seen[one] < LOOKS_ALLOWED for one in learned) else stale + 1
        seen.update(learned)
    return stale


def worn_out(calls: Sequence[Answered]) -> frozenset[tuple[str, str]]:
    """Reads, as (tool, arguments digest), whose last ASKS_ALLOWED answers were the same: asking again is refused.

    A read whose answer still changes may be asked as often as its budgets allow.
    """
    answers: dict[tuple[str, str], list[str | None]] = {}
    for call in calls:
        if not call.duplicate:
            answers.setdefault((call.tool, call.arguments_sha256), []).append(call.result_sha256)
    return frozenset(
        asked
        for asked, results in answers.items()
        if len(results) >= ASKS_ALLOWED and len(set(results[-ASKS_ALLOWED:])) == 1
    )
