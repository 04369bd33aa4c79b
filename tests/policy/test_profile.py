"""Profiles: files, bad fields, and the digest that freezes them."""

from pathlib import Path

import pytest

from orchestrator.domain.errors import ConfigError
from policy.profile import Budgets, Model, Profile

TOML = """
name = "desk"
instructions = "Help."
tools = ["look"]
[model]
api = "openai-chat"
name = "m"
base_url = "http://localhost/v1"
[budgets]
turns = 4
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "desk.toml"
    path.write_text(text)
    return path


def test_load(tmp_path: Path) -> None:
    profile = Profile.load(write(tmp_path, TOML))
    assert (profile.name, profile.tools, profile.budgets.turns) == ("desk", ("look",), 4)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (TOML.replace("turns = 4", "turns = 0"), "budgets.turns"),
        (TOML.replace("turns = 4", "turnz = 4"), "budgets.turnz"),
        (TOML.replace('"desk"', '"Desk 1"'), "name"),
        (TOML.replace('instructions = "Help."', ""), "instructions"),
        ("name = ", "end of document"),
    ],
)
def test_a_bad_file_names_itself_and_the_field(tmp_path: Path, text: str, named: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=named) as caught:
        Profile.load(path)
    assert str(path) in caught.value.message


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        Profile.load(tmp_path / "absent.toml")


def test_digest_depends_on_the_recipe_only() -> None:
    model = Model(api="openai-chat", name="m", base_url="http://h/v1", parameters={"a": 1, "b": 2})
    one = Profile(name="p", model=model, instructions="i")
    other = Profile(name="p", instructions="i", model=model.model_copy(update={"parameters": {"b": 2, "a": 1.0}}))
    assert one.digest == other.digest
    assert one.digest == Profile.model_validate(one.model_dump(mode="json")).digest  # as stored and read back
    assert one.digest != one.model_copy(update={"budgets": Budgets(turns=13)}).digest
