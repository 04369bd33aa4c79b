"""What the two Gemini wire formats share: URLs, headers, schemas, profile parameters, arguments, continuation.

Neither format has a parallel flag: `ModelRequest.parallel=False` cannot be said, and nothing is sent for it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from adapters.arguments import ArgumentError, parse_arguments
from adapters.base import Endpoint, HttpRequest, ModelRequest
from adapters.common import Exchange, exchanges, notice_text
from adapters.documents import UnreadableBody, clean_text, own_call_id, read_json, text_or_none, value_text, write_json
from adapters.names import ToolNames
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.transcript import JsonObject, ModelReply, Notice, TranscriptItem, UserText

VERSION = "v1beta"
_VERSIONS = ("v1", "v1alpha", "v1beta", "v1beta1", "v1beta2")
# An item of ours beside the provider's: how to go on from a reply that stopped in the middle. Never sent as it is.
_CONTINUATION = "turnqueue_continuation"


# --- where to ----------------------------------------------------------------------------------------------------


def versioned(base_url: str) -> str:
    """The base with its API version: `https://host`, `https://host/v1beta` or Vertex's `.../v1/projects/...`."""
    base = base_url.rstrip("/")
    if any(part in _VERSIONS for part in urlsplit(base).path.split("/")):
        return base
    return f"{base}/{VERSION}"


def http_request(url: str, body: JsonObject, endpoint: Endpoint, *, stream: bool) -> HttpRequest:
    """Vertex's project URLs take a bearer token, all else the key header; the endpoint's own headers come last."""
    headers = {"content-type": "application/json", "accept": "text/event-stream" if stream else "application/json"}
    if endpoint.api_key is not None:
        if "/projects/" in endpoint.base_url:
            headers["authorization"] = f"Bearer {endpoint.api_key}"
        else:
            headers["x-goog-api-key"] = endpoint.api_key
    headers.update((name.lower(), value) for name, value in endpoint.headers.items())
    return HttpRequest(url, headers, write_json(body))


# --- tools and parameters ----------------------------------------------------------------------------------------


def declarations(request: ModelRequest, names: ToolNames, key: str) -> list[JsonObject]:
    """Name, description and, under `key`, the JSON Schema of each tool; a tool without parameters has no schema."""
    declared: list[JsonObject] = []
    for tool in request.tools:
        function: JsonObject = {"name": names.to_wire(tool.name), "description": tool.description}
        if _takes_any(tool.parameters):
            function[key] = wire_schema(tool.parameters)
        declared.append(function)
    return declared


def _takes_any(schema: JsonObject) -> bool:
    """Whether an argument object of this schema can have members that the schema names."""
    return bool(schema.get("properties")) or any(
        name in schema for name in ("$ref", "anyOf", "allOf", "oneOf", "patternProperties")
    )


def wire_schema(schema: JsonObject) -> JsonObject:
    """The canonical schema, which both formats read as JSON Schema: what they do not know they ignore.

    Only `const` says more as an `enum` of one, and `$schema` says nothing. The host validates anyway.
    """
    result: JsonObject = _without_const(schema)
    return {name: value for name, value in result.items() if name != "$schema"}


def _without_const(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_const(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    result: JsonObject = {}
    for name, value in schema.items():
        if name in ("properties", "$defs", "definitions", "patternProperties") and isinstance(value, dict):
            result[name] = {key: _without_const(inner) for key, inner in value.items()}
        elif name in ("enum", "default", "examples", "const"):
            result[name] = value
        else:
            result[name] = _without_const(value)
    if isinstance(result.get("const"), str | int | float) and "enum" not in result:
        result["enum"] = [result.pop("const")]
    return result


def merge(body: JsonObject, parameters: Mapping[str, Any], reserved: frozenset[str], path: str = "") -> None:
    """The profile's parameters win over our defaults at every depth and None removes one; `reserved` (dotted names) is
    what the loop owns: ConfigError."""
    for name, value in parameters.items():
        where = f"{path}{name}"
        if where in reserved:
            raise ConfigError("BAD_PARAMETERS", f"profile parameter {where!r} is set by Turnqueue; remove it")
        if value is None:
            body.pop(name, None)
        elif isinstance(value, dict):
            inner = body.setdefault(name, {})
            if not isinstance(inner, dict):
                inner = body[name] = {}
            merge(inner, value, reserved, f"{where}.")
        else:
            body[name] = value


def sorted_out(parameters: Mapping[str, Any], top: frozenset[str], config: str) -> JsonObject:
    """Parameters where the request has them: those of the `top` level, and all others in its `config` object.

    A profile may write `temperature = 0` or `generationConfig = {temperature = 0}`.
    """
    result: JsonObject = {name: value for name, value in parameters.items() if name in top}
    inside = {name: value for name, value in parameters.items() if name not in top and name not in (config, "tools")}
    given = parameters.get(config)
    if inside or given:
        result[config] = {**(given or {}), **inside}
    return result


def said(item: UserText | Notice) -> str:
    return item.text if isinstance(item, UserText) else notice_text(item)


# --- arguments ---------------------------------------------------------------------------------------------------


def object_text(arguments: Any) -> str:
    """The argument text for what should be an object. Absent means none; a text stays a JSON string, so that it is
    refused."""
    return value_text({} if arguments is None else arguments)


def argument_object(text: str) -> JsonObject:
    """For the history, where these APIs only take an object: arguments that are none become an empty one."""
    try:
        return parse_arguments(text)
    except ArgumentError:
        return {}


def json_or_text(output: str) -> Any:
    """An observation as the value that it is, if it is JSON."""
    try:
        return read_json(output.encode("utf-8", "surrogatepass"))
    except UnreadableBody:
        return output


def word(value: Any) -> str | None:
    """An id, name or reason from an event of a stream: storable, and None where there is none."""
    return clean_text(value) if isinstance(value, str) and value else None


def call_id(given: Any, response_id: str | None, request: ModelRequest, index: int) -> str:
    """The provider's id, or one of ours: unique in the reply and over the turns, and the same whenever it is read."""
    turn = sum(isinstance(item, ModelReply) for item in request.items)
    return text_or_none(given) or own_call_id(f"{response_id}/{turn}", index)


# --- continuation ------------------------------------------------------------------------------------------------


def continuation(token: str) -> JsonObject:
    """The item that keeps a continuation token with its reply."""
    return {_CONTINUATION: token}


def token_of(reply: ModelReply, api: str) -> str | None:
    if reply.api != api:
        return None
    return next((item[_CONTINUATION] for item in reply.items if _CONTINUATION in item), None)


def provider_items(reply: ModelReply) -> list[JsonObject]:
    return [item for item in reply.items if _CONTINUATION not in item]


def resumed(items: tuple[TranscriptItem, ...], api: str) -> ModelReply | None:
    """The reply that this request goes on from: it stopped in the middle, and nothing was said since."""
    last = items[-1] if items else None
    return last if isinstance(last, ModelReply) and token_of(last, api) is not None else None


def shown_exchanges(items: Iterable[TranscriptItem], api: str) -> Iterator[Exchange]:
    """The exchanges for the request. A reply that was continued is left out: the one that went on holds it all."""
    for exchange in exchanges(items):
        stopped = exchange.reply is not None and token_of(exchange.reply, api) is not None
        if not stopped or exchange.others:
            yield exchange
