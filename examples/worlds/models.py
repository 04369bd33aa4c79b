"""Argument and result models that all domains use. Arguments are closed and strict; records are open objects."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Record(RootModel[dict[str, Any]]):
    """A record, exactly as the domain keeps it."""


class Text(RootModel[str]):
    """A plain answer: an id, a sentence, a number as text or a JSON text."""


class Expression(Arguments):
    expression: str = Field(description="Numbers, + - * /, parentheses and spaces, such as '2 + 2'.")


class Nothing(Arguments):
    pass


class Summary(Arguments):
    summary: str = Field(description="Summary of the customer's issue.")
