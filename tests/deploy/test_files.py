"""What docker-compose.yml and the Dockerfile say, as far as it can be checked without an engine."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from embedded.wheels import valkey_programs
from examples.support.profile import support
from examples.support.tools import TOOLS
from executors.registry import ToolSpec
from orchestrator.heartbeat import BEAT_SECONDS
from orchestrator.hints import CORE_QUEUES
from orchestrator.settings import Settings
from policy.profile import Model
from tests.deploy import compose
from tests.shared import ROOT
from tests.system.scene import wait_until

SECRETS = {"POSTGRES_PASSWORD": "pg-secret", "REDIS_PASSWORD": "redis-secret"}
OURS = {"migrate", "orchestrator", "executor-reads", "executor-writes", "sweeper", "flower"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return compose.load(SECRETS)


@pytest.fixture(scope="module")
def services(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["services"]
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a $$B $A ${A} c", "a $B 1 1 c"),
        ("${NONE:-x}${EMPTY:-y}${A:-z}", "xy1"),
        ("${NONE:-p://u:${A:?no}@h}/${NONE}", "p://u:1@h/"),
    ],
)
def test_interpolation(text: str, expected: str) -> None:
    assert compose.interpolate(text, {"A": "1", "EMPTY": ""}) == expected


def test_services(services: dict[str, Any]) -> None:
    assert set(services) == OURS | set(compose.SERVERS) | {"rabbitmq"}
    optional = {name: service["profiles"] for name, service in services.items() if "profiles" in service}
    assert optional == {"flower": ["flower"], "rabbitmq": ["rabbitmq"]}


@pytest.mark.parametrize("missing", SECRETS)
def test_nothing_starts_without_a_secret(missing: str) -> None:
    with pytest.raises(compose.MissingVariable, match=missing):
        compose.load({name: value for name, value in SECRETS.items() if name != missing})


def test_no_secret_is_written_down() -> None:
    text = compose.FILE.read_text()
    for line in re.findall(r"^.*(?:PASSWORD|BASIC_AUTH|requirepass).*$", text, re.MULTILINE):
        if not line.lstrip().startswith("#"):
            assert "${" in line or line.strip() == 'requirepass "$$REDISCLI_AUTH"', line
    # A URL with a password literal would not contain a variable between ':' and '@'.
    assert not re.search(r"://[^$\s]*:[^$\s]+@", text)


def test_no_command_line_holds_a_secret(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for secret in SECRETS.values():
            assert secret not in str(service.get("command", "")), name


def test_no_registry_host_and_no_latest_tag(services: dict[str, Any]) -> None:
    images = {service["image"] for service in services.values()}
    images |= {rest.split()[0] for name, rest in compose.dockerfile() if name == "FROM"}
    for image in images:
        name, _, tag = image.partition(":")
        assert tag, image
        assert tag != "latest", image
        assert "." not in name, image


def test_every_service_is_watched_or_ends(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name == "migrate":  # one-shot: its exit status says it all
            assert service["healthcheck"] == {"disable": True}
            assert service["restart"] == "no"
            continue
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL"), name
        assert service["restart"] == "unless-stopped", name


def test_the_heartbeat_may_miss_a_few_beats(services: dict[str, Any]) -> None:
    for name in OURS - {"migrate", "flower"}:
        found = re.search(r"-newermt '-(\d+) seconds'", services[name]["healthcheck"]["test"][1])
        assert found is not None
        assert int(found[1]) >= 4 * BEAT_SECONDS
        assert services[name]["environment"]["TURNQUEUE_HEARTBEAT_FILE"] in services[name]["healthcheck"]["test"][1]
        assert services[name]["tmpfs"] == ["/tmp"]


def test_grace_outlasts_the_longest_call(services: dict[str, Any]) -> None:
    models = [support().model.timeout, Model.model_fields["timeout"].default]
    tools = [spec.timeout for spec in TOOLS] + [ToolSpec.__dataclass_fields__["timeout"].default]
    for name in ("orchestrator", "executor-reads", "executor-writes"):
        assert compose.seconds(services[name]["stop_grace_period"]) >= max(models + tools) + 30, name


def test_dependencies(services: dict[str, Any]) -> None:
    for name in ("orchestrator", "executor-reads", "executor-writes", "sweeper"):
        assert services[name]["depends_on"] == {
            "migrate": {"condition": "service_completed_successfully"},
            "postgres": {"condition": "service_healthy"},
            "redis": {"condition": "service_healthy"},
        }
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert list(compose.in_order(services))


def test_every_core_queue_is_consumed(services: dict[str, Any]) -> None:
    consumed: list[str] = []
    for service in services.values():
        command = service.get("command", [])
        if "-Q" in command:
            consumed += command[command.index("-Q") + 1].split(",")
    assert sorted(consumed) == sorted(CORE_QUEUES)
    assert "orchestrator,submit" in services["orchestrator"]["command"]


def test_redis_keeps_what_it_took(services: dict[str, Any], tmp_path: Path) -> None:
    """Its command, run here with Valkey: the password is asked, the settings hold, and no argument shows it."""
    service, at = services["redis"], tmp_path / "socket"
    entrypoint = tmp_path / "docker-entrypoint.sh"
    entrypoint.write_text(f'#!/bin/sh\nshift\nexec {valkey_programs().executable} --port 0 --unixsocket {at} "$@"\n')
    entrypoint.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **service["environment"]}
    with (
        subprocess.Popen(service["command"], env=env, cwd=tmp_path, stdout=subprocess.DEVNULL) as process,
        redis.Redis(unix_socket_path=str(at), password=SECRETS["REDIS_PASSWORD"]) as client,
        redis.Redis(unix_socket_path=str(at)) as stranger,
    ):
        try:
            wait_until(lambda: _answers(client))
            assert SECRETS["REDIS_PASSWORD"].encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
        finally:
            process.terminate()
    assert service["volumes"] == ["redis:/data"]


def _answers(client: redis.Redis) -> bool:
    with suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


def test_only_flower_has_a_port_and_only_here(services: dict[str, Any], document: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert ports == {"flower": ["127.0.0.1:5555:5555"]}
    assert document["networks"]["backend"] == {"internal": True}
    assert all(services[name]["networks"] == ["backend"] for name in (*compose.SERVERS, "migrate", "sweeper"))
    used = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert used == set(document["volumes"])


def test_small_rights(services: dict[str, Any]) -> None:
    for name in OURS:
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
    holders = {name for name in OURS if "TURNQUEUE_SENDERS" in services[name].get("environment", {})}
    assert holders == {"orchestrator"}
    assert "TURNQUEUE_DATABASE_URL" not in services["flower"]["environment"]


# --- Dockerfile ------------------------------------------------------------------------------------------------------


def test_every_copied_path_exists_and_reaches_the_build() -> None:
    stages: list[str] = []
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    for name, rest in compose.dockerfile():
        if name == "FROM" and " AS " in rest:
            stages.append(rest.split(" AS ")[1])
        if name != "COPY":
            continue
        words = rest.split()
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
            continue
        for source in words[:-1]:
            assert (ROOT / source).exists(), source
            assert not _ignored(source, ignore), source
    assert _ignored("senders.env", ignore)
    assert _ignored(".git", ignore)
    assert _ignored("uv.lock", ignore)


def _ignored(path: str, patterns: list[str]) -> bool:
    result = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(path, pattern.lstrip("!").replace("**/", "*")):
            result = not pattern.startswith("!")
    return result


def test_the_image_has_every_package_of_the_wheel() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = config["tool"]["hatch"]["build"]["targets"]["wheel"]["include"]
    copied = {word for name, rest in compose.dockerfile() if name == "COPY" for word in rest.split()[:-1]}
    assert {path.lstrip("/") for path in included} <= copied


def test_the_process_is_celery_without_root() -> None:
    instructions = compose.dockerfile()
    users = [rest for name, rest in instructions if name == "USER"]
    assert users == ["10001"]
    commands = [rest for name, rest in instructions if name in ("CMD", "ENTRYPOINT")]
    assert len(commands) == 1
    assert json.loads(commands[0])[:3] == ["celery", "-A", "orchestrator.tasks"]


def test_the_build_steps_make_an_installation_that_needs_no_checkout(tmp_path: Path) -> None:
    """Runs the build stage's COPY and `uv sync` here, then uses the result from an empty folder."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("the image is built with uv, which is not on this machine's path")
    source, installed = tmp_path / "src", tmp_path / "installed"
    source.mkdir()
    env = {"UV_PROJECT_ENVIRONMENT": str(installed), "UV_PYTHON_DOWNLOADS": "never"}
    for name, rest in compose.dockerfile():
        if name == "COPY" and not rest.startswith("--from"):
            *paths, _ = rest.split()
            for path in paths:
                _copy(ROOT / path, source / path)
        if name == "RUN" and rest.startswith("uv sync"):
            _run([uv, *rest.split()[1:]], source, env)
    shutil.rmtree(source)
    _run([str(installed / "bin" / "celery"), "-A", "orchestrator.tasks", "report"], tmp_path, {})
    check = "import store.migrate as m, orchestrator.sweeper, flower; assert list(m.MIGRATIONS.glob('versions/0*.py'))"
    _run([str(installed / "bin" / "python"), "-c", check], tmp_path, {})


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _run(command: list[str], cwd: Path, env: dict[str, str]) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TURNQUEUE_", "VIRTUAL_ENV", "PYTHONPATH"))}
    done = subprocess.run(command, cwd=cwd, env=kept | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_guide_names_every_setting() -> None:
    guide = (ROOT / "docs" / "deploy.md").read_text()
    for name in Settings.model_fields:
        assert f"`{name.upper()}`" in guide, name
