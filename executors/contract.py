"""What the audit records of a tool: the revisions of its contract, and arguments without their values."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from executors.redaction import PERSONAL
from executors.registry import ToolSpec


class _Audited:
    """See AUDITED."""

    def __repr__(self) -> str:
        return "AUDITED"


# Marks a field of an arguments model whose value may stand in the audit: `order_id: Annotated[str, AUDITED]`. Of all
# other arguments the audit has names and a digest. It is metadata of the annotation, so no schema shows it to a model.
AUDITED = _Audited()


@dataclass(frozen=True, slots=True)
class Contract:
    """Revisions, as SHA-256 of what they stand for; `handler` is `VERSION@` and the digest of the whole contract."""

    input: str  # JSON Schema of the arguments
    output: str  # JSON Schema of the result, and which part of it is shown
    effect: str  # what running it does, and how an uncertain outcome is settled
    handler: str


@lru_cache(maxsize=1024)
def contract(spec: ToolSpec) -> Contract:
    """How it is operated (queue, timeout, concurrency, attempts) is not part of it."""
    made = {
        "input": _digest(dict(spec.schema)),
        "output": _digest([_schema(spec.result), sorted(spec.expose or ()), spec.max_result_bytes]),
        "effect": _digest(
            [spec.effect, spec.egress, spec.repeatable, spec.unreconcilable, str(spec.idempotency),
             _name(spec.reconcile)]
        ),
    }  # fmt: skip
    whole = _digest(
        [spec.name, spec.version, spec.description, made, sorted(spec.scopes), spec.intent, spec.sparse_arguments,
         spec.reference_field, str(spec.approval_ttl), *map(_name, (spec.handler, spec.authorize, spec.approval))]
    )  # fmt: skip
    return Contract(**made, handler=f"{spec.version}@{whole}")


def _schema(model: type[BaseModel]) -> Any:
    try:
        return model.model_json_schema(mode="serialization")
    except PydanticUserError:  # a type that JSON Schema cannot describe
        return _name(model)


def _name(value: Any) -> str:
    """The qualified name of a function, class or object; a constant as it is. The same in every process: no address."""
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, functools.partial):
        return f"partial of {_name(value.func)}"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def redacted(spec: ToolSpec | None, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments for the audit: `fields` given, and `values` of those that are marked AUDITED and are text, integers,
    booleans or null. Arguments that do not parse, or of an unknown tool, have no fields here; their digest is beside.
    """
    if spec is None or arguments is None:
        return {"fields": [], "values": {}}
    fields = spec.arguments.model_fields.items()
    marked = {name for name, field in fields if AUDITED in field.metadata and PERSONAL not in field.metadata}
    shown = {
        name: value
        for name, value in arguments.items()
        if name in marked and (value is None or isinstance(value, str | int))
    }
    return {"fields": sorted(arguments), "values": shown}
