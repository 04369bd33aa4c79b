"""The built-in tool `ask_user`: what a model may ask its caller, and what counts as an answer. Pure.

It is registered everywhere and enabled like any tool, by a profile that lists it. No handler runs: the call waits for
the caller (`orchestrator.people.answer`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import jsonschema
from jsonschema.exceptions import SchemaError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from orchestrator.domain import digests

NAME = "ask_user"
DESCRIPTION = (
    "Ask the person on whose behalf you work one question, when something that only they know is missing or ambiguous. "
    "Give `choices` when only these answers are possible, or `answer_schema` (JSON Schema) when the answer needs a "
    "shape. Changes nothing; the answer is the result."
)
MAX_ANSWER_BYTES = 32 * 1024
_MAX_SCHEMA_BYTES = 4 * 1024
_MAX_DEPTH = 5
# No references, no patterns: checking an answer must cost little, whatever the model wrote.
_KEYWORDS = frozenset(
    {
        "type", "title", "description", "enum", "const", "properties", "required", "additionalProperties", "items",
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems",
    }
)  # fmt: skip


def _restricted(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    if len(digests.canonical(schema)) > _MAX_SCHEMA_BYTES:
        raise ValueError(f"has more than {_MAX_SCHEMA_BYTES} bytes")
    _check(schema, 1)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"is no JSON Schema: {error.message[:200]}") from None
    return schema


def _check(schema: Any, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ValueError("must be an object")  # noqa: TRY004 - pydantic reports ValueError
    if depth > _MAX_DEPTH:
        raise ValueError(f"is deeper than {_MAX_DEPTH} levels")
    if unknown := sorted(set(schema) - _KEYWORDS):
        raise ValueError(f"keyword {unknown[0]!r} is not supported here")
    properties = schema.get("properties", {})
    inner = [*(properties.values() if isinstance(properties, Mapping) else [])]
    inner += [schema[name] for name in ("items", "additionalProperties") if name in schema]
    for part in inner:
        _check(part, depth + 1)


class AskUser(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    question: str = Field(min_length=1, max_length=2000)
    choices: list[Annotated[str, Field(min_length=1, max_length=200)]] | None = Field(
        default=None, min_length=2, max_length=20, description="the only possible answers"
    )
    answer_schema: Annotated[dict[str, Any] | None, AfterValidator(_restricted)] = Field(
        default=None, description="JSON Schema of the answer: type, enum, properties, required, items and limits"
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.choices is not None and self.answer_schema is not None:
            raise ValueError("give choices or answer_schema, not both")
        if self.choices is not None and len(set(self.choices)) != len(self.choices):
            raise ValueError("choices: each may be given once")
        return self


class Answer(BaseModel):
    answer: Any


def _has_nul(value: Any) -> bool:
    """PostgreSQL holds none."""
    if isinstance(value, Mapping):
        return any(_has_nul(name) or _has_nul(inner) for name, inner in value.items())
    if isinstance(value, list):
        return any(map(_has_nul, value))
    return isinstance(value, str) and "\0" in value


def problem(answer: Any, *, choices: Sequence[str] | None, answer_schema: Mapping[str, Any] | None) -> str | None:
    """Why this is no answer to the question, or None. Without choices and schema an answer is text."""
    try:
        size = len(digests.canonical(answer))
    except ValueError:
        return "it is not JSON"
    if _has_nul(answer):
        return "it must not contain NUL characters"
    if size > MAX_ANSWER_BYTES:
        return f"it has more than {MAX_ANSWER_BYTES} bytes"
    if choices is not None:
        return None if answer in choices else f"it must be one of {', '.join(map(repr, choices))}"
    if answer_schema is None:
        return None if isinstance(answer, str) and answer.strip() else "it must be text"
    error = next(jsonschema.Draft202012Validator(dict(answer_schema)).iter_errors(answer), None)
    if error is None:
        return None
    where = ".".join(map(str, error.absolute_path))
    return f"{where or 'it'} does not fit the question's schema ({error.validator})"
