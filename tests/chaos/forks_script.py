"""What the model says to each operation of the fork harness, by its number; imports little."""

import random
from typing import Any

WARMING = 10**6  # from here on, numbers of operations that a parent does before it forks


def _calls(seed: int, number: int, turn: int, names: list[str]) -> dict[str, Any]:
    """Every call's `name` is unique in the run."""
    return {
        "calls": [
            {"name": name, "arguments": {"name": f"{seed}-{number}-{turn}-{at}"}} for at, name in enumerate(names)
        ]
    }


def script(seed: int, number: int) -> dict[str, Any]:
    """Reads, writes of every kind and approvals, in two to five turns."""
    chosen = random.Random(f"{seed}:{number}")
    wanted: list[list[str]] = []
    if chosen.random() < 0.7:
        wanted.append(["look", chosen.choice(("look", "look", "narrow"))])
    wanted.append(chosen.choices(("pay_keyed", "pay_both"), (3, 1), k=chosen.choice((1, 2))))
    wanted.append(["pay_free"] * chosen.randint(2, 4))
    if chosen.random() < 0.5:
        wanted.append(["pay_asked"] * chosen.choice((1, 2, 3)))
    if chosen.random() < 0.35:
        wanted.append([chosen.choices(("pay_lookup", "pay_blind"), (5, 1))[0]])
    chosen.shuffle(wanted)
    turns = [_calls(seed, number, turn, names) for turn, names in enumerate(wanted)]
    for turn in turns:
        if chosen.random() < 0.2:
            turn["fault"] = {"delay": round(chosen.random() * 0.2, 3)}
    return {"id": f"forks-{number}", "turns": [*turns, {"text": "Done."}]}


def warming(seed: int, index: int) -> list[dict[str, Any]]:
    """What a parent does before it forks: scripts that pass through everything once or twice."""
    names = (["look", "narrow"], ["pay_keyed", "pay_both"])
    return [
        {
            "id": f"forks-{number}",
            "turns": [*(_calls(seed, number, turn, calls) for turn, calls in enumerate(names)), {"text": "Done."}],
        }
        for number in warming_numbers(index)
    ]


def warming_numbers(index: int) -> list[int]:
    return [index * WARMING + n for n in range(4)]
