"""Faults that a test orders from a running shop: the next answers of one endpoint go wrong in one named way."""

import threading
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Endpoint = Literal[
    "GET /orders",
    "GET /refund-policy",
    "POST /refund-drafts",
    "GET /refund-drafts",
    "POST /refunds",
    "GET /refunds/by-key",
    "GET /ledger",
]


class Fault(BaseModel):
    """What goes wrong, for the next `times` requests of `endpoint`.

    - `delay`: wait `seconds`, then work as usual (the caller may have given up: a late effect)
    - `status`: answer `status` at once, without any effect
    - `cut_before`: close the connection without any effect
    - `cut_after_effect`: commit the effect, then close the connection without an answer
    - `garbage`: commit the effect, then answer 200 with bytes that are not JSON
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: Endpoint
    kind: Literal["delay", "status", "cut_before", "cut_after_effect", "garbage"]
    times: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    seconds: Annotated[float, Field(gt=0, le=600)] | None = None
    status: Annotated[int, Field(ge=400, le=599)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> "Fault":
        if (self.kind == "delay") != (self.seconds is not None):
            raise ValueError("seconds belongs to kind delay, and only to it")
        if (self.kind == "status") != (self.status is not None):
            raise ValueError("status belongs to kind status, and only to it")
        return self


class Faults:
    """The faults still to come, oldest first per endpoint."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Fault] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._waiting.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def take(self, endpoint: str) -> Fault | None:
        """Use up one time of the oldest fault of `endpoint`."""
        with self._lock:
            for index, fault in enumerate(self._waiting):
                if fault.endpoint == endpoint:
                    left = [fault.model_copy(update={"times": fault.times - 1})] if fault.times > 1 else []
                    self._waiting[index : index + 1] = left
                    return fault
        return None
