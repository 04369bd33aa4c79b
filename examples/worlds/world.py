"""What a domain's pure functions know: a world of records, and how to refuse."""

import re
from collections.abc import Iterator
from typing import Any, Protocol

Record = dict[str, Any]
RecordKey = tuple[str, str]  # table, key


class Refusal(Exception):
    """The domain says no. `text` is exact and shown to the model; `code` is stable: it never contains an id."""

    def __init__(self, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.code = code or re.sub(r"[^A-Z]+", "_", text.upper()).strip("_")


class World(Protocol):
    """One customer-visible state: tables of records by key. Records that `get` and `all` give are not to be changed."""

    def get(self, table: str, key: str) -> Record | None: ...

    def put(self, table: str, key: str, record: Record) -> None: ...

    def all(self, table: str) -> Iterator[tuple[str, Record]]:
        """Every record in file order; records added later come last."""
        ...
