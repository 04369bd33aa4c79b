"""docker-compose.yml without a Docker engine: its variables, its services, and their commands as local processes."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from embedded import guard
from tests.shared import ROOT

FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
SERVERS = ("postgres", "redis")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class MissingVariable(Exception):
    """`${NAME:?message}` without a value."""


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Compose's rules for `$$`, `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:?message}`, also nested."""
    out, at = [], 0
    while (dollar := text.find("$", at)) >= 0:
        out.append(text[at:dollar])
        value, at = _variable(text, dollar + 1, variables)
        out.append(value)
    return "".join([*out, text[at:]])


def _variable(text: str, at: int, variables: Mapping[str, str]) -> tuple[str, int]:
    """The value of what follows a dollar sign, and where the text goes on."""
    if text.startswith("$", at):
        return "$", at + 1
    braced = text.startswith("{", at)
    name = _NAME.match(text, at + braced)
    if name is None:
        raise ValueError(f"no variable at {text[at - 1 : at + 20]!r}")
    value = variables.get(name[0], "")
    if not braced:
        return value, name.end()
    end = _closing_brace(text, at)
    rest = text[name.end() : end]
    if rest and rest[:2] not in (":-", ":?"):
        raise ValueError(f"this form is not implemented here: {text[at - 1 : end + 1]!r}")
    if not value and rest.startswith(":?"):
        raise MissingVariable(f"{name[0]}: {rest[2:]}")
    return value or interpolate(rest[2:], variables), end + 1


def _closing_brace(text: str, at: int) -> int:
    depth = 0
    for index in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise ValueError(f"no closing brace: {text[at:]!r}")


def _everywhere(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return interpolate(value, variables)
    if isinstance(value, list):
        return [_everywhere(item, variables) for item in value]
    if isinstance(value, dict):
        return {key: _everywhere(item, variables) for key, item in value.items()}
    return value


def load(variables: Mapping[str, str]) -> dict[str, Any]:
    """The file as compose would see it. Raises MissingVariable."""
    document: dict[str, Any] = _everywhere(yaml.safe_load(FILE.read_text()), variables)
    return document


def seconds(duration: str) -> float:
    """`90s`, `2m30s`."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|m|s)", duration)
    assert "".join(number + unit for number, unit in parts) == duration, duration
    return sum(float(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)


def in_order(services: Mapping[str, Any]) -> Iterator[str]:
    """Names, each after what it depends on."""
    done: list[str] = []
    while len(done) < len(services):
        ready = [n for n, s in services.items() if n not in done and set(s.get("depends_on", {})) <= set(done)]
        assert ready, f"a circle, or an unknown service, in depends_on: {set(services) - set(done)}"
        done += ready
        yield from ready


def dockerfile() -> list[tuple[str, str]]:
    """(instruction, arguments) in order, continuation lines joined, comments left out."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1]) for line in joined.splitlines()]


def image_environment() -> dict[str, str]:
    """The last stage's ENV, with our programs where the image has its own."""
    instructions = dockerfile()
    last = max(index for index, (name, _) in enumerate(instructions) if name == "FROM")
    pairs = " ".join(rest for name, rest in instructions[last:] if name == "ENV").split()
    found = dict(pair.split("=", 1) for pair in pairs)
    return found | {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}


@dataclass(slots=True)
class Local:
    """Services as local processes. `replaced`: what this machine must set differently, by service.

    A service gets the image's environment and its own, and nothing of ours. `home` is its working directory.
    """

    services: Mapping[str, Any]
    home: Path
    replaced: Mapping[str, Mapping[str, str]]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def environment(self, name: str) -> dict[str, str]:
        return image_environment() | dict(self.services[name].get("environment", {})) | dict(self.replaced[name])

    def start(self, name: str) -> subprocess.Popen[bytes]:
        command = self.services[name]["command"]
        with self.log(name).open("wb") as log:
            # The guard ends it with this test run, however that ends.
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *command],
                env=self.environment(name), cwd=self.home, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return self.processes[name]

    def log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def healthy(self, name: str) -> bool:
        """What the service's own health check says now; its heartbeat lies elsewhere here."""
        kind, *rest = self.services[name]["healthcheck"]["test"]
        own = dict(self.services[name]["environment"]).get("TURNQUEUE_HEARTBEAT_FILE")
        if own:
            rest = [part.replace(own, self.replaced[name]["TURNQUEUE_HEARTBEAT_FILE"]) for part in rest]
        command = ["sh", "-c", rest[0]] if kind == "CMD-SHELL" else rest
        done = subprocess.run(command, env=self.environment(name), cwd=self.home, capture_output=True, check=False)
        return done.returncode == 0

    def stop(self) -> dict[str, int]:
        """SIGTERM to all that run; their exit statuses. SIGKILL for those that outlive their grace period."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name, process in self.processes.items():
            try:
                process.wait(seconds(self.services[name]["stop_grace_period"]))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return {name: process.returncode for name, process in self.processes.items()}
