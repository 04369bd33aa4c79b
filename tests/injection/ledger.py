"""The canary: an append-only file in which the tools write what they really did. Turnqueue knows nothing of it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rfc8785


@dataclass(frozen=True, slots=True)
class Deed:
    """One effect that happened, or one request that could carry data out."""

    tenant: str
    tool: str
    arguments: str  # canonical JSON
    operation_id: str
    key: str | None

    @property
    def what(self) -> tuple[str, str]:
        return self.tool, self.arguments


def canonical(arguments: Mapping[str, Any]) -> str:
    """An optional argument that is null says the same as one that is left out."""
    return rfc8785.dumps({name: value for name, value in arguments.items() if value is not None}).decode()


def append(path: Path, deed: Deed) -> None:
    """One write in append mode: lines of several processes do not mix."""
    line = json.dumps([deed.tenant, deed.tool, deed.arguments, deed.operation_id, deed.key]) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        written = os.write(file, line.encode())
        if written != len(line.encode()):
            raise OSError("the ledger took only a part of the line")
    finally:
        os.close(file)


def read(path: Path) -> list[Deed]:
    return [Deed(*json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
