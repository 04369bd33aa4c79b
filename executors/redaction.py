"""What must not be written down or shown: fields marked in models, and the credentials of this process.

- `PERSONAL` marks a field whose value is a person's own (name, address, account): `email: Annotated[str, PERSONAL]`.
- `SecretStr` (or `SecretBytes`, `Secret`) marks a credential; `ToolSpec` refuses it in arguments.

docs/redaction.md says where each may appear.
"""

import dataclasses
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, RootModel, Secret, SecretBytes, SecretStr


class _Personal:
    """See PERSONAL."""

    def __repr__(self) -> str:
        return "PERSONAL"


# Metadata of the annotation: no schema shows it to a model.
PERSONAL = _Personal()
HIDDEN = "[personal]"
REDACTED = "[redacted]"

_SECRET = (SecretStr, SecretBytes, Secret)
_LEAVE_OUT = object()
Path = tuple[str, ...]
_Decide = Callable[[Path, Any], Any]  # path and value of a marked field -> what stands there instead, or _LEAVE_OUT


# --- marked fields -------------------------------------------------------------------------------------------------


def hidden(model: type[BaseModel], data: Any) -> Any:
    """`data` (JSON, as `model` writes it) with HIDDEN in place of personal values; for views and machines."""
    return _project(model, (), data, (), lambda path, value: None if value is None else HIDDEN)


def personal_values(model: type[BaseModel], data: Any) -> list[str]:
    """The personal texts in `data`, the long ones first."""
    found: list[str] = []

    def note(path: Path, value: Any) -> Any:
        found.extend(_texts(value))
        return value

    _project(model, (), data, (), note)
    return sorted(set(found), key=len, reverse=True)


def allowed(model: type[BaseModel], data: Any, expose: frozenset[str] | None) -> Any:
    """`data` without credentials, and without personal fields that `expose` does not name (`email`, `owner.email`)."""
    if not any(marked_fields(model)):
        return data
    named = expose or frozenset()

    def decide(path: Path, value: Any) -> Any:
        return value if ".".join(path) in named else _LEAVE_OUT

    return _project(model, (), data, (), decide)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from _texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)


def _project(kind: Any, metadata: tuple[Any, ...], value: Any, path: Path, decide: _Decide) -> Any:
    """Data and its type side by side; collections add nothing to a path."""
    if PERSONAL in metadata:
        return decide(path, value)
    if _is_secret(kind):
        return decide((*path, ""), value)  # no name allows it
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _project(arguments[0], arguments[1:], value, path, decide)
    if origin in (typing.Union, types.UnionType):
        for each in arguments:
            if value is not _LEAVE_OUT:
                value = _project(each, (), value, path, decide)
        return value
    if isinstance(value, list) and arguments:
        kinds = [arguments[0]] * len(value) if origin is not tuple or arguments[-1] is ... else list(arguments)
        members = [_project(k, (), member, path, decide) for k, member in zip(kinds, value, strict=False)]
        return [member for member in members if member is not _LEAVE_OUT]
    if isinstance(value, dict):
        return _object(kind, origin, arguments, value, path, decide)
    if isinstance(kind, type) and issubclass(kind, RootModel):
        root = kind.model_fields["root"]
        return _project(root.annotation, tuple(root.metadata), value, path, decide)
    return value


def _object(
    kind: Any, origin: Any, arguments: tuple[Any, ...], value: dict[str, Any], path: Path, decide: _Decide
) -> Any:
    if isinstance(kind, type) and issubclass(kind, RootModel):
        root = kind.model_fields["root"]
        return _project(root.annotation, tuple(root.metadata), value, path, decide)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        members = {name: _project(arguments[1], (), member, path, decide) for name, member in value.items()}
    else:
        fields = _fields(kind)
        members = {
            name: _project(*fields[name], member, (*path, name), decide) if name in fields else member
            for name, member in value.items()
        }
    return {name: member for name, member in members.items() if member is not _LEAVE_OUT}


def _fields(kind: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Type and metadata of each field of a model, dataclass or TypedDict, by every name it may be written under."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        found = {}
        for name, field in kind.model_fields.items():
            for written in {name, field.serialization_alias or name, field.alias or name}:
                found[written] = (field.annotation, tuple(field.metadata))
        return found
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        return {name: (hint, ()) for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
    return {}


def _is_secret(kind: Any) -> bool:
    base = typing.get_origin(kind) or kind
    return isinstance(base, type) and issubclass(base, _SECRET)


@lru_cache(maxsize=1024)
def marked_fields(model: type[BaseModel]) -> tuple[frozenset[str], frozenset[str]]:
    """Dotted names of the personal fields and of the credentials in a model, at any depth."""
    personal: set[str] = set()
    secret: set[str] = set()
    _walk(model, (), "", personal, secret, frozenset())
    return frozenset(personal), frozenset(secret)


def _walk(
    kind: Any, metadata: tuple[Any, ...], path: str, personal: set[str], secret: set[str], above: frozenset[Any]
) -> None:
    if PERSONAL in metadata:
        personal.add(path)
    elif _is_secret(kind):
        secret.add(path)
    elif typing.get_origin(kind) is typing.Annotated:
        inner, *more = typing.get_args(kind)
        _walk(inner, tuple(more), path, personal, secret, above)
    else:
        for argument in typing.get_args(kind):
            _walk(argument, (), path, personal, secret, above)
        if kind not in above:
            for name, (annotation, marks) in _fields(kind).items():
                inside = path if name == "root" else f"{path}.{name}" if path else name
                _walk(annotation, marks, inside, personal, secret, above | {kind})


# --- this process's credentials ------------------------------------------------------------------------------------

_NAMES_A_SECRET = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|KEYS|TOKEN|TOKENS|SECRET|SECRETS|PASSWORD|PASSWD|CREDENTIALS?|BASIC_AUTH)$", re.IGNORECASE
)
_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/@]*:([^\s/@]+)@", re.IGNORECASE)
_SHORTEST = 8  # characters; a shorter one is no credential and would stand in ordinary words


def without_credentials(text: str) -> str:
    """The text without the credentials that this process holds, whoever sent them back."""
    pattern = _pattern()
    return pattern.sub(REDACTED, text) if pattern else text


@cache
def _pattern() -> re.Pattern[str] | None:
    """Of the environment as it was when first asked: credentials do not change while a process runs."""
    values = sorted(credentials(os.environ), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, values))) if values else None


def credentials(environ: Mapping[str, str]) -> frozenset[str]:
    """Values of variables that are named like one (`…_KEY`, `…_TOKEN`, `…_PASSWORD`, …), of those that an `…_ENV`
    variable refers to, and the passwords in URLs."""
    found: set[str] = set()
    for name, value in environ.items():
        if _NAMES_A_SECRET.search(name):
            found.add(value)
        if name.upper().endswith("_ENV"):
            found.add(environ.get(value, ""))
        for password in _IN_URL.findall(value):
            found |= {password, unquote(password)}
    return frozenset(value for value in found if len(value) >= _SHORTEST)
