"""What the README shows works: its tool registers, its profile loads, its commands are run by tests."""

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from adapters.registry import ADAPTERS
from executors.registry import Registry
from orchestrator.domain.model import Effect
from policy.profile import Profile

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# Each command of the README and the test that runs it (.ci/run runs the first two as they stand).
RUN_BY = {
    "pip install uv && uv run turnqueue demo --yes": "tests/cli/test_demo.py::test_human_output_names_the_evidence",
    "pip install uv && uv run pytest": ".ci/run",
    "uv run turnqueue up": "tests/cli/test_up.py::test_says_where_things_are",
    'uv run turnqueue run --profile support --input "Refund ORD-123456, please."': (
        "tests/cli/test_up.py::test_run_uses_the_workers_that_run"
    ),
    "uv run turnqueue list": "tests/cli/test_up.py::test_list",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def test_the_tool_registers() -> None:
    [source] = blocks("python")
    module = ModuleType("shop_tools")
    sys.modules["shop_tools"] = module
    try:
        exec(compile(source, "README.md", "exec"), module.__dict__)
        registry = Registry()
        module.register(registry)
        registry.check()
    finally:
        del sys.modules["shop_tools"]
    spec = registry.tool("cancel_order")
    assert spec is not None
    assert (spec.effect, spec.approval, spec.queue) == (Effect.CREATE, True, "writes")
    assert registry.profile("shop") is not None


def test_the_profile_loads(tmp_path: Path) -> None:
    [source] = blocks("toml")
    path = tmp_path / "shop.toml"
    path.write_text(source)
    profile = Profile.load(path)
    assert profile.model.api in ADAPTERS
    assert set(tomllib.loads(source)) <= set(Profile.model_fields)


def test_every_command_is_run_by_a_test() -> None:
    shown = [line.split("   #")[0].strip() for line in re.findall(r"^\$ (.*)$", README, re.M)]
    assert shown == list(RUN_BY)
    for where in RUN_BY.values():
        path, _, name = where.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_provider_is_named() -> None:
    assert [api for api in ADAPTERS if api not in README] == []
