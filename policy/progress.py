"""The loop guard: did this turn ask anything that had not been asked and answered before?"""

from collections import Counter
from collections.abc import Iterable

# One repeat can be a sensible second look; what comes after it brings nothing new.
REPEATS_ALLOWED = 2


def brings_something_new(earlier: Iterable[tuple[str, str]], current: Iterable[tuple[str, str]]) -> bool:
    """Whether some call of this turn, as (tool, arguments digest), was asked fewer than REPEATS_ALLOWED times."""
    asked = Counter(earlier)
    for call in current:
        if asked[call] < REPEATS_ALLOWED:
            return True
        asked[call] += 1
    return False
