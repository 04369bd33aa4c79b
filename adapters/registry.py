"""The adapters by the name that a profile uses for its wire format."""

from adapters.anthropic_messages import AnthropicMessages
from adapters.base import Adapter
from adapters.gemini_generate import GeminiGenerate
from adapters.gemini_interactions import GeminiInteractions
from adapters.openai_chat import OpenAIChat
from adapters.openai_responses import OpenAIResponses
from orchestrator.domain.errors import ConfigError

_ALL: tuple[Adapter, ...] = (
    OpenAIResponses(),
    OpenAIChat(),
    AnthropicMessages(),
    GeminiGenerate(),
    GeminiInteractions(),
)
ADAPTERS: dict[str, Adapter] = {adapter.api: adapter for adapter in _ALL}


def adapter_for(api: str) -> Adapter:
    """The adapter of a wire format; raises ConfigError UNKNOWN_API that lists the known ones."""
    try:
        return ADAPTERS[api]
    except KeyError:
        known = ", ".join(sorted(ADAPTERS))
        raise ConfigError("UNKNOWN_API", f"model.api {api!r} has no adapter; known: {known}") from None
