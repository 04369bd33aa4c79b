"""What the two OpenAI wire formats share: URLs, headers, tool list, profile parameters, observations, history order."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from adapters.base import Endpoint, HttpRequest, ModelRequest, ToolChoice
from adapters.documents import UnreadableBody, read_json, write_json
from adapters.names import ToolNames
from adapters.schema import strict_form
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.transcript import JsonObject, ModelReply, Notice, Observation, TranscriptItem, UserText

NOTICE_PREFIX = "[Notice from the host application, not from the user] "

# No tool name may contain these, so a call that carries one of them resolves to nothing in the registry.
FOREIGN_MARK = "::"


def azure_url(endpoint: Endpoint, path: str, *, per_deployment: bool) -> str:
    """`path` is like "chat/completions". Covers OpenAI's form and Azure's three."""
    base = endpoint.base_url.rstrip("/")
    if endpoint.azure_deployment is None:
        return f"{base}/{path}"
    base = base.removesuffix("/openai/v1").removesuffix("/openai")
    if endpoint.azure_api_version is None:
        return f"{base}/openai/v1/{path}"
    place = f"deployments/{quote(endpoint.azure_deployment, safe='')}/" if per_deployment else ""
    return f"{base}/openai/{place}{path}?api-version={quote(endpoint.azure_api_version, safe='')}"


def http_request(url: str, body: JsonObject, endpoint: Endpoint) -> HttpRequest:
    """The endpoint's own headers come last: a gateway may need another form of authorization."""
    headers = {"content-type": "application/json", "accept": "application/json"}
    if endpoint.api_key is not None:
        if endpoint.azure_deployment is not None:
            headers["api-key"] = endpoint.api_key
        else:
            headers["authorization"] = f"Bearer {endpoint.api_key}"
    headers.update((name.lower(), value) for name, value in endpoint.headers.items())
    return HttpRequest(url, headers, write_json(body))


def merge_parameters(body: JsonObject, parameters: Mapping[str, Any], reserved: frozenset[str]) -> None:
    """The profile's parameters win over our defaults, None removes one; what the loop owns is a ConfigError."""
    for name, value in parameters.items():
        if name in reserved:
            raise ConfigError("BAD_PARAMETERS", f"profile parameter {name!r} is set by Turnqueue; remove it")
        if value is None:
            body.pop(name, None)
        elif isinstance(value, dict) and isinstance(body.get(name), dict):
            body[name] = {**value, **body[name]}
        else:
            body[name] = value


def hosted_tools(parameters: Mapping[str, Any]) -> list[JsonObject]:
    """Provider-side tools that the profile adds under `tools` (web search, ...); functions come only from us."""
    tools = parameters.get("tools") or []
    for hosted in tools:
        if not isinstance(hosted, dict) or hosted.get("type") in (None, "function", "custom"):
            raise ConfigError("BAD_PARAMETERS", "profile parameter 'tools' may only list provider-side tools")
    return list(tools)


def function_fields(request: ModelRequest, names: ToolNames) -> Iterator[JsonObject]:
    """Name, description, parameters and strict of each tool, in order."""
    for declared in request.tools:
        schema, strict = strict_form(declared.parameters) if declared.strict else (declared.parameters, False)
        yield {
            "name": names.to_wire(declared.name),
            "description": declared.description,
            "parameters": schema,
            "strict": strict,
        }


def output_format(schema: JsonObject) -> JsonObject:
    """Name, schema and strict of a structured answer."""
    form = strict_form(schema)
    return {"name": "output", "schema": form.schema, "strict": form.strict}


def check_choice(choice: ToolChoice, names: ToolNames) -> None:
    """Raises ConfigError for a choice that names no tool of the request, or not as many as its mode takes."""
    wrong = [name for name in choice.names if name not in names]
    if wrong:
        raise ConfigError("BAD_TOOL_CHOICE", f"tool_choice names {wrong[0]!r}, which this request does not offer")
    if (choice.mode == "named" and len(choice.names) != 1) or (choice.mode == "allowed" and not choice.names):
        raise ConfigError("BAD_TOOL_CHOICE", f"tool_choice {choice.mode!r} has {len(choice.names)} names")


def observation_text(observation: Observation) -> str:
    """These APIs have no error flag, so the content says it; a JSON output is embedded as it is."""
    if not observation.is_error:
        return observation.output
    try:
        read_json(observation.output.encode("utf-8", "surrogatepass"))
        shown = observation.output
    except UnreadableBody:
        shown = write_json(observation.output).decode()
    return f'{{"is_error":true,"output":{shown}}}'


def notice_text(notice: Notice) -> str:
    return NOTICE_PREFIX + notice.text


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model reply with the results of its calls, which must follow it directly, and what was said after."""

    reply: ModelReply | None
    results: tuple[Observation, ...]
    others: tuple[UserText | Notice, ...]


def exchanges(items: Iterable[TranscriptItem]) -> Iterator[Exchange]:
    """The transcript in the order the APIs want: reply, all its results in call order, then other messages.

    Raises ValueError for a result without its call or a call without its result: the provider would answer 400.
    """
    reply: ModelReply | None = None
    rest: list[Observation | UserText | Notice] = []
    for item in items:
        if isinstance(item, ModelReply):
            yield _exchange(reply, rest)
            reply, rest = item, []
        else:
            rest.append(item)
    yield _exchange(reply, rest)


def _exchange(reply: ModelReply | None, rest: list[Observation | UserText | Notice]) -> Exchange:
    found: dict[str, list[Observation]] = {}
    for item in rest:
        if isinstance(item, Observation):
            found.setdefault(item.call_id, []).append(item)
    order = list(dict.fromkeys(call.call_id for call in reply.calls)) if reply else []
    if set(order) != found.keys():
        odd = sorted(set(order) ^ found.keys())[0]
        raise ValueError(f"call {odd!r} and its result do not stand together in the transcript")
    results = tuple(result for call_id in order for result in found[call_id])
    return Exchange(reply, results, tuple(item for item in rest if not isinstance(item, Observation)))
