"""Wire formats of the scripted model. Another provider is another class and one line in `FORMATS`."""

from collections.abc import Callable

from examples.scripted_model.formats.anthropic import Messages
from examples.scripted_model.formats.base import Asked, BadRequest, Format, Ids
from examples.scripted_model.formats.gemini import Generate, Interactions
from examples.scripted_model.formats.openai import Chat, Responses

FORMATS: tuple[Callable[[Ids], Format], ...] = (
    Responses,
    Chat,
    Messages,
    Generate,
    Interactions,
)


def formats() -> tuple[Format, ...]:
    """One set per server: they share the id counter and nothing else."""
    ids = Ids()
    return tuple(make(ids) for make in FORMATS)


__all__ = ["FORMATS", "Asked", "BadRequest", "Format", "Ids", "formats"]
