"""Sealing and opening: what a signature proves, and that nothing is believed before it."""

import json
import subprocess
import sys
import zlib
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from itsdangerous.encoding import base64_encode

from orchestrator.domain.errors import ConfigError, UserError
from orchestrator.enqueue import MAX_SEALED, Enqueuer, seal
from orchestrator.envelope import check_senders, open_sealed
from orchestrator.hints import transport_options
from orchestrator.settings import Settings
from orchestrator.submission import MAX_INPUT, submission
from tests.enqueue.forge import ENVIRON, KEY, OTHER_KEY, SENDERS, content, request, sealed

SETTINGS = Settings.model_validate({"senders": SENDERS, "broker_url": "redis://unused"})


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


def refused(envelope: object) -> str:
    with pytest.raises(UserError) as caught:
        open_sealed(SETTINGS, envelope)
    return caught.value.code


def test_round_trip() -> None:
    asked = submission(**request(input="Grüße, 世界 🫖", scopes=["orders:read"], idempotency_key="t-1"))
    opened, proof = open_sealed(SETTINGS, seal(asked, sender="desk", key=KEY))
    assert opened == asked
    assert proof.sender == "desk"
    assert open_sealed(SETTINGS, seal(asked, sender="desk", key=KEY))[1].nonce != proof.nonce


def test_the_longest_input_of_the_widest_characters_fits() -> None:
    asked = submission(**request(input="🫖" * MAX_INPUT))
    assert open_sealed(SETTINGS, seal(asked, sender="desk", key=KEY))[0] == asked


def test_an_envelope_that_nobody_would_open_is_not_sent() -> None:
    with pytest.raises(UserError, match="too long"):
        seal(submission(**request(input="\x01" * MAX_INPUT)), sender="desk", key=KEY)


@pytest.mark.parametrize(
    "bare", [None, 7, {}, request(), [sealed(content())], b"tq1.desk.x", "", "hello", "tq2.desk.x"]
)
def test_bare(bare: object) -> None:
    assert refused(bare) == "ENVELOPE_BARE"


@pytest.mark.parametrize("name", ["nobody", "", "desk ", "Desk", "x" * 100, "../desk", "desk\n"])
def test_unknown_sender(name: str) -> None:
    assert refused(sealed(content(), sender=name)) == "ENVELOPE_UNKNOWN_SENDER"
    assert refused("tq1") == "ENVELOPE_BARE"
    assert refused("tq1.") == "ENVELOPE_UNKNOWN_SENDER"


def test_size_is_checked_before_anything_else() -> None:
    assert refused("tq1." + "x" * MAX_SEALED) == "ENVELOPE_TOO_LARGE"
    assert refused(sealed(content(input="x" * MAX_SEALED))) == "ENVELOPE_TOO_LARGE"


FORGERIES: dict[str, Callable[[], str]] = {
    "another key": lambda: sealed(content(), key="not-the-key-0123456789abcdefghijkl"),
    "the key of another sender": lambda: sealed(content(), key=OTHER_KEY),
    "another sender's envelope with our name on it": lambda: sealed(content(), sender="shop", key=OTHER_KEY).replace(
        "tq1.shop.", "tq1.desk.", 1
    ),
    "signed for another sender": lambda: sealed(content(), salted="shop"),
    "signed for another purpose": lambda: sealed(content(), salted="x").replace("x", "y"),
    "no key": lambda: sealed(content(), key=""),
    "other content": lambda: _with_part(2, base64_encode(json.dumps(content(input="More")).encode()).decode()),
    "other time": lambda: _with_part(3, "zzzz"),
    "time of a far future": lambda: _with_part(3, "_" * 40),
    "no time": lambda: ".".join(sealed(content()).split(".")[:3]),
    "no signature": lambda: sealed(content()).rsplit(".", 1)[0] + ".",
    "half a surrogate pair": lambda: sealed(content()) + "\ud800",
    "a part more": lambda: sealed(content()) + ".x",
}


def _with_part(index: int, value: str) -> str:
    parts = sealed(content()).split(".")
    parts[index] = value
    return ".".join(parts)


@pytest.mark.parametrize("how", FORGERIES)
def test_forged(how: str) -> None:
    assert refused(FORGERIES[how]()) == "ENVELOPE_FORGED"


WHOLE = sealed(content(idempotency_key="t-1"))


# The last character's low bits say nothing in base64: it can be spelt otherwise, which is the very same signature.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the keys are the same for every example
@given(st.integers(0, len(WHOLE) - 2), st.characters())
def test_any_change_of_one_character_is_noticed(at: int, character: str) -> None:
    changed = WHOLE[:at] + character + WHOLE[at + 1 :]
    assume(changed != WHOLE)
    assert refused(changed) in {"ENVELOPE_BARE", "ENVELOPE_UNKNOWN_SENDER", "ENVELOPE_FORGED"}


def test_a_bomb_is_not_unpacked() -> None:
    """itsdangerous' own serializers unpack zlib before they verify; here nothing is unpacked at all."""
    bomb = zlib.compress(b" " * 50_000_000)
    assert refused(sealed(bomb, key="attacker-0123456789abcdef0123456789ab")) == "ENVELOPE_FORGED"
    assert refused(sealed(bomb)) == "BAD_FIELD"


def test_time() -> None:
    assert refused(sealed(content(), age=SETTINGS.envelope_seconds + 5)) == "ENVELOPE_EXPIRED"
    assert refused(sealed(content(), age=-120)) == "ENVELOPE_EXPIRED"
    open_sealed(SETTINGS, sealed(content(), age=SETTINGS.envelope_seconds - 60))
    open_sealed(SETTINGS, sealed(content(), age=-10))  # the sender's clock is a little ahead


def test_it_lives_longer_than_the_redelivery_of_a_dead_workers_messages() -> None:
    assert SETTINGS.envelope_seconds > transport_options(SETTINGS)["visibility_timeout"]


@pytest.mark.parametrize(
    "changes",
    [{"tenant": "globex"}, {"profile": "other"}, {"scopes": ["refunds:approve"]}, {"scopes": ["orders:read", "x"]}],
)
def test_more_than_the_sender_may(changes: dict[str, object]) -> None:
    assert refused(sealed(content(**changes))) == "ENVELOPE_FORBIDDEN"


NONCE = "0123456789abcdef"
BAD = [
    [], "text", 7, None, {}, {"request": request()}, {"nonce": NONCE}, {"nonce": NONCE, "request": []},
    {"nonce": 7, "request": request()}, {"nonce": "short", "request": request()},
    {"nonce": "x" * 3000, "request": request()}, {"nonce": NONCE, "request": request(), "key": "k"},
    {"nonce": NONCE, "request": request(operation_id="op_1")}, {"nonce": NONCE, "request": request(input=7)},
    {"nonce": NONCE, "request": request(input="a\0b")}, {"nonce": NONCE, "request": request(subject="\ud800")},
    {"nonce": NONCE, "request": request(scopes="orders:read")}, {"nonce": NONCE, "request": request(scopes=[7])},
    {"nonce": NONCE, "request": request(idempotency_key="")}, {"nonce": NONCE, "request": request(tenant=None)},
    {"nonce": NONCE, "request": {"profile": "support", "input": "Hello", "subject": "s"}},
    {"nonce": NONCE, "request": {"profile": "support", "input": "Hello", "tenant": "acme"}},
    b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"nonce": NaN}',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=lambda body: repr(body)[:60])
def test_a_sender_gone_wrong(body: object) -> None:
    assert refused(sealed(body)) == "BAD_FIELD"


def test_keys_are_checked_at_the_start() -> None:
    check_senders(SETTINGS, ENVIRON)
    for environ, code in (
        ({**ENVIRON, "DESK_ENVELOPE_KEY": ""}, "MISSING_VARIABLE"),
        ({**ENVIRON, "DESK_ENVELOPE_KEY": "short"}, "BAD_KEY"),
        ({**ENVIRON, "DESK_ENVELOPE_KEY": OTHER_KEY}, "SHARED_KEY"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_senders(SETTINGS, environ)
        assert caught.value.code == code
    dotted = Settings.model_validate({"senders": {"a.b": SENDERS["desk"]}})
    with pytest.raises(ConfigError, match="1 to 64"):
        check_senders(dotted, ENVIRON)


def test_the_sending_side_fails_early() -> None:
    class Nobody:
        def send_task(self, name: str, args: object = None, **options: object) -> None:
            raise AssertionError("nothing must be sent")

    with pytest.raises(ConfigError, match="fewer than"):
        Enqueuer(Nobody(), sender="desk", key="short")
    with pytest.raises(UserError, match=r"^tenant"):
        Enqueuer(Nobody(), sender="desk", key=KEY).submit(profile="support", input="Hi", tenant="a b", subject="s")


@pytest.mark.parametrize("module", ["orchestrator.enqueue", "orchestrator.envelope"])
def test_light_to_import(module: str) -> None:
    """A sender needs no Celery, no database library and no setting."""
    heavy = "{'celery', 'sqlalchemy', 'alembic', 'psycopg', 'httpx', 'tenacity'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env={"PATH": ""}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
