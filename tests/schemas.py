"""python -m tests.schemas DIR [--json]: every argument verdict of a folder of real tool schemas, as the host decides.

An argument text is parsed strictly, what the strict form of the schema asked for is undone, and the object is validated
against the canonical schema. Exit code 0 only when every verdict is right, every turn of parallel calls is accepted and
every tool name survives its trip to the wire and back.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from adapters.arguments import ArgumentError, parse_arguments
from adapters.base import ToolDeclaration
from adapters.names import ToolNames
from adapters.schema import restore_optional

JsonObject = dict[str, Any]


@dataclass(slots=True)
class Count:
    cases: int = 0
    passed: int = 0

    def add(self, right: bool) -> bool:
        self.cases += 1
        self.passed += right
        return right


@dataclass(slots=True)
class Verdicts:
    schemas: int = 0
    valid: Count = field(default_factory=Count)
    invalid: Count = field(default_factory=Count)
    raw: Count = field(default_factory=Count)
    turns: Count = field(default_factory=Count)
    names: Count = field(default_factory=Count)
    wrong: list[str] = field(default_factory=list)

    def note(self, count: Count, right: bool, where: str) -> None:
        if not count.add(right):
            self.wrong.append(where)

    def to_json(self) -> JsonObject:
        return {
            "schemas": self.schemas,
            "valid_accepted": self.valid.passed,
            "valid": self.valid.cases,
            "invalid_rejected": self.invalid.passed,
            "invalid": self.invalid.cases,
            "raw": asdict(self.raw),
        }


class Checker:
    """One tool's arguments, decided as they arrive: text in, verdict out."""

    def __init__(self, schema: JsonObject) -> None:
        Draft202012Validator.check_schema(schema)
        self._schema = schema
        self._validator = Draft202012Validator(schema)

    def accepts(self, text: str) -> bool:
        try:
            arguments = parse_arguments(text)
        except ArgumentError:
            return False
        return bool(self._validator.is_valid(restore_optional(arguments, self._schema)))


def check(folder: Path) -> Verdicts:
    """Raises OSError or ValueError where the folder cannot be read."""
    verdicts = Verdicts()
    for entry in _load(folder, "schemas.json", []):
        _schema(verdicts, entry)
    for case in _load(folder, "raw_arguments.json", {"cases": []})["cases"]:
        accepted = Checker({"type": "object"}).accepts(case["text"])
        verdicts.note(verdicts.raw, case["acceptable"] in (None, accepted), case["id"])
    for turn in _load(folder, "parallel_turns.json", []):
        verdicts.note(verdicts.turns, _turn_is_accepted(turn), turn["id"])
    names = _load(folder, "tool_names.json", {})
    for group in _groups(names):
        verdicts.note(verdicts.names, _survive(group), ", ".join(group[:2]))
    return verdicts


def _load(folder: Path, name: str, absent: Any) -> Any:
    path = folder / name
    return json.loads(path.read_text()) if path.exists() or name == "schemas.json" else absent


def _schema(verdicts: Verdicts, entry: JsonObject) -> None:
    checker = Checker(entry["parameters"])
    verdicts.schemas += 1
    for index, sample in enumerate(entry["valid"]):
        verdicts.note(verdicts.valid, checker.accepts(json.dumps(sample)), f"{entry['id']} valid {index}")
    for index, sample in enumerate(entry["invalid"]):
        refused = not checker.accepts(json.dumps(sample["arguments"]))
        verdicts.note(verdicts.invalid, refused, f"{entry['id']} invalid {index}: {sample.get('why')}")


def _turn_is_accepted(turn: JsonObject) -> bool:
    """The tools have one wire name each, and each call leads back to a tool that accepts its arguments."""
    tools = {tool["name"]: tool for tool in turn["tools"]}
    names = ToolNames(ToolDeclaration(tool["name"], "", tool["parameters"]) for tool in tools.values())
    for call in turn["calls"]:
        tool = tools.get(names.from_wire(names.to_wire(call["name"])))
        if tool is None or not Checker(tool["parameters"]).accepts(json.dumps(call["arguments"])):
            return False
    return True


def _groups(names: JsonObject) -> Iterator[list[str]]:
    """Names that are offered together: each alone, all at once, and those that collide when carelessly mapped."""
    odd = names.get("names_not_matching", [])
    yield from ([name] for name in odd)
    yield from names.get("collisions_when_bad_characters_become_underscore", [])
    if odd:
        yield odd


def _survive(group: list[str]) -> bool:
    declared = list(dict.fromkeys(group))
    names = ToolNames(ToolDeclaration(name, "", {"type": "object"}) for name in declared)
    wire = [names.to_wire(name) for name in declared]
    fits = all(map(_plain, wire))
    return fits and len(set(wire)) == len(wire) and [names.from_wire(name) for name in wire] == declared


def _plain(name: str) -> bool:
    return 0 < len(name) <= 64 and name.isascii() and name.replace("-", "a").replace("_", "a").isalnum()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.schemas", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    try:
        verdicts = check(options.folder)
    except (OSError, ValueError, KeyError) as problem:
        print(f"cannot check: {type(problem).__name__}: {problem}", file=sys.stderr)
        return 2
    for where in verdicts.wrong:
        print(f"wrong: {where}", file=sys.stderr)
    if options.json:
        print(json.dumps(verdicts.to_json()))
    else:
        for name in ("valid", "invalid", "raw", "turns", "names"):
            count: Count = getattr(verdicts, name)
            print(f"{name}: {count.passed} of {count.cases}")
    return 1 if verdicts.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
