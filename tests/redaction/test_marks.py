"""What the marks do to specs, results, views and profiles; and which credentials a process knows of itself."""

import json
import os
import subprocess
import sys
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from executors import redaction, results
from executors.contract import AUDITED, redacted
from executors.redaction import HIDDEN, PERSONAL
from executors.registry import ToolSpec
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.model import Effect
from orchestrator.settings import Settings
from policy.profile import Model


class Place(BaseModel):
    street: Annotated[str, PERSONAL]
    city: str


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str
    name: Annotated[str | None, PERSONAL] = None
    homes: list[Place] = []
    work: Place | None = None
    by_year: dict[str, Place] = {}
    code: Annotated[str, AUDITED, PERSONAL] = ""


class Locked(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: "list[Inner]"


class Inner(BaseModel):
    password: SecretStr | None = None
    open: str = "yes"


PLACE = {"street": "Elm 1", "city": "Bonn"}
PERSON = {"id": "p1", "name": "Ann", "homes": [PLACE], "work": PLACE, "by_year": {"1990": PLACE}, "code": "c"}


def spec(arguments: type[BaseModel], result: type[BaseModel], **fields: Any) -> ToolSpec:
    return ToolSpec(
        name="t", description="d", arguments=arguments, result=result, handler=lambda a, c: None, effect=Effect.READ,
        **fields,
    )  # fmt: skip


def test_a_secret_is_no_argument() -> None:
    with pytest.raises(ConfigError, match=r"'inner\.password' is a secret"):
        spec(Locked, Place)


def test_personal_values_are_hidden_at_any_depth() -> None:
    place = {"street": HIDDEN, "city": "Bonn"}
    assert redaction.hidden(Person, PERSON) == {
        "id": "p1", "name": HIDDEN, "homes": [place], "work": place, "by_year": {"1990": place}, "code": HIDDEN
    }  # fmt: skip
    assert redaction.hidden(Person, {"id": "p1", "name": None}) == {"id": "p1", "name": None}


def test_results_show_personal_fields_only_by_name() -> None:
    bonn = {"city": "Bonn"}
    shown = results.validated(spec(Person, Person), Person(**PERSON))
    assert shown == {"id": "p1", "homes": [bonn], "work": bonn, "by_year": {"1990": bonn}}
    named = spec(Person, Person, expose=frozenset({"name", "work", "work.street"}))
    assert results.validated(named, Person(**PERSON)) == {"name": "Ann", "work": PLACE}
    with pytest.raises(ConfigError, match=r"work\.zip"):
        spec(Person, Person, expose=frozenset({"work.zip"}))


def test_secrets_are_never_in_a_result() -> None:
    answer = Locked(inner=[Inner(password=SecretStr("hunter22")), Inner()])
    for fields in ({}, {"expose": frozenset({"inner"})}):
        assert results.validated(spec(Place_, Locked, **fields), answer) == {"inner": [{"open": "yes"}] * 2}


class Place_(Place):
    model_config = ConfigDict(extra="forbid")


def test_the_audit_has_no_personal_value_even_where_it_is_marked_for_it() -> None:
    assert redacted(spec(Person, Place), PERSON) == {"fields": sorted(PERSON), "values": {}}


def test_profiles_hold_no_credential() -> None:
    fields: dict[str, Any] = {"api": "openai-chat", "name": "m", "base_url": "http://h/v1"}
    for changed in (
        {"headers": {"Authorization": "Bearer abc"}},
        {"headers": {"api-key": "abc"}},
        {"headers": {"X-Session-Token": "abc"}},
        {"base_url": "https://me:hunter22@h/v1"},
    ):
        with pytest.raises(ValidationError) as caught:
            Model(**{**fields, **changed})
        assert "hunter22" not in str(caught.value)
        assert "abc" not in str(caught.value)
    Model(**{**fields, "headers": {"Authorization": "$GATEWAY", "X-Team": "blue"}})


def test_which_credentials_a_process_has() -> None:
    environ = {
        "SHOP_TOKEN": "tok-12345678",
        "OPENAI_API_KEY": "key-12345678",
        "TURNQUEUE_COMPLETION_KEY_ENV": "SIGNING",
        "SIGNING": "sign-12345678",
        "TURNQUEUE_DATABASE_URL": "postgresql://me:p%40ss-word@h/db",
        "TURNQUEUE_BROKER_URL": "redis://:bro-ker-pw@h/0",
        "SHORT_KEY": "abc",
        "KEYBOARD": "qwertz-layout",
        "HOME": "/home/somebody",
    }
    assert redaction.credentials(environ) == {
        "tok-12345678", "key-12345678", "sign-12345678", "p%40ss-word", "p@ss-word", "bro-ker-pw"
    }  # fmt: skip


def test_settings_do_not_print_passwords() -> None:
    settings = Settings(database_url="postgresql://me:hunter22@h/db", broker_url="redis://:hunter22@h/0")
    assert "hunter22" not in repr(settings) + str(settings)


PROGRAM = """
import logging, structlog
from orchestrator.logs import configure
configure()
logging.basicConfig(level="INFO")
log = structlog.get_logger()
try:
    try:
        raise ValueError("Failing row contains (Ann)")
    except ValueError as error:
        raise RuntimeError("for Ann") from error
except RuntimeError as error:
    log.error("task.failed", exc_info=error)
    log.exception("sweeper.failed")
log.warning("said", by="shop-token-12345")
logging.getLogger("kombu").error("cannot connect with %s", "shop-token-12345")
"""


def test_logs_have_types_and_places_of_exceptions_and_no_credential() -> None:
    env = {**os.environ, "SHOP_TOKEN": "shop-token-12345", "TURNQUEUE_LOG_LEVEL": "INFO"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert "shop-token-12345" not in done.stderr
    assert "Ann" not in done.stderr
    assert done.stderr.count("[redacted]") == 2
    failed = json.loads(done.stderr.splitlines()[0])
    assert failed["exception"] == ["builtins.RuntimeError", "builtins.ValueError"]
    assert failed["at"][-1].endswith("<module>")
