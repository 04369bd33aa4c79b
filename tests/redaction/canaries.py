"""Twenty-odd values that must not be found, each of its own, and where they are planted."""

import secrets
from dataclasses import dataclass, fields
from typing import Any


def _tag(name: str) -> str:
    return f"canary{name}{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class Canaries:
    """Credentials. `sk_*` have the form of well-known keys; the others are known only by the variable they are in."""

    provider_key: str
    gateway_header: str
    envelope_key: str
    completion_key: str
    anchor_key: str
    shop_token: str
    database_password: str
    broker_password: str
    flower_password: str
    session_secret: str  # a SecretStr in a result
    nested_secret: str
    sk_in_result: str
    jwt_in_result: str
    bearer_in_error: str
    key_in_exception: str
    key_in_hook: str
    key_in_provider_error: str
    key_in_unexposed: str

    @classmethod
    def plant(cls) -> "Canaries":
        made: dict[str, Any] = {each.name: _tag(each.name.replace("_", "")) for each in fields(cls)}
        made["sk_in_result"] = f"sk-{made['sk_in_result']}"
        made["jwt_in_result"] = f"eyJ{made['jwt_in_result']}.{secrets.token_hex(9)}.{secrets.token_hex(9)}"
        return cls(**made)

    @property
    def all(self) -> dict[str, str]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def env(self) -> dict[str, str]:
        """What the processes get. The last ones are planted by the tools and by the model, and are in no process's own
        credentials: a variable hands them over under a name that says nothing."""
        given = {
            "CANARY_PROVIDER_KEY": self.provider_key,
            "CANARY_GATEWAY_TOKEN": self.gateway_header,
            "CANARY_ENVELOPE_KEY": self.envelope_key,
            "CANARY_COMPLETION_KEY": self.completion_key,
            "CANARY_ANCHOR_KEY": self.anchor_key,
            "CANARY_SHOP_TOKEN": self.shop_token,
            "FLOWER_BASIC_AUTH": f"ops:{self.flower_password}",
        }
        planted = ("session_secret", "nested_secret", "sk_in_result", "jwt_in_result", "bearer_in_error",
                   "key_in_exception", "key_in_hook", "key_in_unexposed")  # fmt: skip
        return given | {f"PLANT_{name.upper()}_HERE": getattr(self, name) for name in planted}


@dataclass(frozen=True, slots=True)
class Personal:
    """Personal values: they may stand in protected columns, and where somebody asks for them."""

    email: str = "canary.mail.7f3a@example.org"
    iban: str = "DE00CANARY5500001111"
    street: str = "Canary Street 4471"
    birthday: str = "canary-1971-02-03"  # in a result, and not exposed
    shown: str = "Canaria Exposita"  # in a result, and exposed: the model may see it, machines and logs may not

    @property
    def all(self) -> dict[str, str]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def never_to_the_model(self) -> dict[str, str]:
        """Not what it said itself, nor what the allowlist lets through."""
        return {"birthday": self.birthday}
