"""Tool names on the wire: one-to-one within a request, derived from the tool list alone."""

import hashlib
import re
from collections.abc import Iterable

from adapters.base import ToolDeclaration
from orchestrator.domain.errors import ConfigError

MAX_NAME = 64
_FITS = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")  # Gemini also wants a letter or "_" first
_BAD = re.compile(r"[^A-Za-z0-9_-]+")
_DIGEST = 10  # hex digits: 40 bits keep the names of one request apart


class ToolNames:
    """Both directions for the tools of one request. A name that fits every provider travels as it is.

    Raises ConfigError DUPLICATE_TOOL when two tools have one name (or, by accident, one wire name).
    """

    def __init__(self, tools: Iterable[ToolDeclaration]) -> None:
        self._wire: dict[str, str] = {}
        self._ours: dict[str, str] = {}
        for declared in tools:
            wire = wire_name(declared.name)
            if wire in self._ours:
                raise ConfigError("DUPLICATE_TOOL", f"tool {declared.name!r} is declared twice in one request")
            self._wire[declared.name] = wire
            self._ours[wire] = declared.name

    def to_wire(self, name: str) -> str:
        """Also for a tool that is no longer offered but stands in the history."""
        return self._wire.get(name) or wire_name(name)

    def from_wire(self, name: str) -> str:
        """The declared tool's name; an unknown name comes back as it is, for the allowlist to refuse."""
        return self._ours.get(name, name)

    def __contains__(self, name: str) -> bool:
        return name in self._wire


def wire_name(name: str) -> str:
    """`math.gcd` -> `math_gcd_<digest>`: the digest is of the whole name, so that no two names become one."""
    if _FITS.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    readable = _BAD.sub("_", name)
    if not re.match("[A-Za-z_]", readable):
        readable = f"_{readable}"
    return f"{readable[: MAX_NAME - _DIGEST - 1]}_{digest}"
