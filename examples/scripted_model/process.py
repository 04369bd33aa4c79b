"""The scripted model as a child process, for tests and demos."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from examples.scripted_model.script import Script

_ROOT = Path(__file__).resolve().parents[2]
_PREFIX = "listening on "


class ScriptedModel:
    """with ScriptedModel.start() as model:
    model.add({"id": "hello", "turns": [{"text": "Hello."}]})
    ... base_url = f"{model.url}/v1" ...
    """

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.url = url
        self._process = process
        self._client = httpx.Client(base_url=url, trust_env=False)

    @classmethod
    def start(cls, *arguments: str) -> Self:
        """Raises RuntimeError when the server does not come up."""
        command = [sys.executable, "-m", "examples.scripted_model", "--port", "0", *arguments]
        process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.startswith(_PREFIX):
            process.kill()
            process.wait()
            process.stdout.close()
            raise RuntimeError(f"the scripted model did not start: {line!r}")
        return cls(process, line.removeprefix(_PREFIX))

    def add(self, *scripts: Script | Mapping[str, Any]) -> None:
        """Add or replace scripts; raises ValidationError for a bad one."""
        checked = [s if isinstance(s, Script) else Script.model_validate(s) for s in scripts]
        body = [script.model_dump(mode="json", exclude_defaults=True) for script in checked]
        self._client.post("/control/scripts", json=body).raise_for_status()

    def requests(self, script_id: str) -> list[dict[str, Any]]:
        """What was asked of one script, oldest first: each with path, turn and body (the last 1000)."""
        answer = self._client.get("/control/requests", params={"script": script_id}).raise_for_status()
        return list(answer.json()["requests"])

    def reset(self) -> None:
        self._client.post("/control/reset").raise_for_status()

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
