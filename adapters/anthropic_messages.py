"""Anthropic Messages (`POST /v1/messages`): requests. Replies are read in `anthropic_reply` and `anthropic_stream`.

Everything is stateless here: the content of each reply is carried back block by block as it came, with thinking,
redacted thinking and the blocks of server tools in place. What this API cannot say, and what is done instead:

- a subset of the tools ("allowed"): only those tools are sent, so the provider's prompt cache starts anew;
- an output schema outside the strict subset: the schema stands in the system text, and the host checks the answer;
- a forced choice while thinking: sent as it is; the models that refuse it answer 400, which is PROVIDER_CONFIG.

Two profile parameters are read here and not sent: `strict` (false: no tool is sent as strict, for models and servers
that do not know it) and `tools` (provider-side tools, see `hosted_tools`). A thinking budget that no longer fits below
`max_tokens`, because the operation's own budget is nearly used up, is made smaller, or thinking is switched off.
"""

from typing import Any

from adapters.anthropic_history import messages
from adapters.anthropic_reply import failed_request, reply_from_document, texts_of_inputs
from adapters.anthropic_schema import Form, StrictRoom, loose_form, strict_form, with_wire_keys
from adapters.anthropic_stream import MessagesAccumulator
from adapters.base import Accumulator, Endpoint, HttpRequest, HttpResponse, ModelRequest, Reply, ToolChoice
from adapters.common import check_choice, hosted_tools, merge_parameters
from adapters.documents import UnreadableBody, as_object, read_json, write_json
from adapters.names import ToolNames
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.transcript import JsonObject

API = "anthropic-messages"
VERSION = "2023-06-01"  # another one, and beta features, through the profile's headers
DEFAULT_MAX_TOKENS = 8192  # the API has no default; every model in use can write so much
RESERVED = frozenset({"model", "messages", "system", "max_tokens", "tool_choice", "stream"})
_OURS = ("strict", "tools", "container")  # parameters that do not travel as they are
_SMALLEST_THINKING = 1024
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


class AnthropicMessages:
    """See `adapters.base.Adapter`. Raises ConfigError for a request that this API cannot say."""

    api = API
    revision = "2"

    def to_request(self, request: ModelRequest, endpoint: Endpoint) -> HttpRequest:
        if request.server_state or request.previous_response_id is not None:
            raise ConfigError("SERVER_STATE_UNSUPPORTED", f"{self.api} keeps no state; set server_state to false")
        if endpoint.azure_deployment is not None:
            raise ConfigError("BAD_ENDPOINT", f"{self.api} has no Azure form; use base_url and headers")
        return HttpRequest(_url(endpoint), _headers(endpoint), write_json(_body(request)))

    def from_response(self, response: HttpResponse, request: ModelRequest) -> Reply:
        if response.status >= 300:
            return failed_request(response)
        try:
            document = read_json(response.body)
            texts = texts_of_inputs(response.body)
        except UnreadableBody:
            document, texts = None, {}
        return reply_from_document(document, response, request, texts)

    def accumulator(self, head: HttpResponse, request: ModelRequest) -> Accumulator:
        return MessagesAccumulator(head, request)


def _url(endpoint: Endpoint) -> str:
    """The base URL may or may not include the version."""
    return f"{endpoint.base_url.rstrip('/').removesuffix('/v1')}/v1/messages"


def _headers(endpoint: Endpoint) -> dict[str, str]:
    """The endpoint's own headers come last: beta features, another version, a gateway's form of authorization."""
    headers = {"content-type": "application/json", "accept": "application/json", "anthropic-version": VERSION}
    if endpoint.api_key is not None:
        headers["x-api-key"] = endpoint.api_key
    headers.update((name.lower(), value) for name, value in endpoint.headers.items())
    return headers


def _body(request: ModelRequest) -> JsonObject:
    names, room = ToolNames(request.tools), StrictRoom()
    conversation, container = messages(request.items, API, names)
    body: JsonObject = {"model": request.model, "messages": conversation}
    _add_instructions(body, request, room)
    _add_tools(body, request, names, room)
    if request.stream:
        body["stream"] = True
    merge_parameters(body, {k: v for k, v in request.parameters.items() if k not in _OURS}, RESERVED)
    _add_container(body, request.parameters.get("container"), container)
    _add_limits(body, request.max_output_tokens)
    return body


def _add_instructions(body: JsonObject, request: ModelRequest, room: StrictRoom) -> None:
    system = [request.instructions] if request.instructions else []
    if request.output_schema is not None:
        form = strict_form(request.output_schema)
        if room.takes(form, tool=False):
            body["output_config"] = {"format": {"type": "json_schema", "schema": form.schema}}
        else:
            schema = write_json(request.output_schema).decode()
            system.append(f"Your final answer is one JSON object and nothing else. It fits this JSON Schema: {schema}")
    if system:
        body["system"] = "\n\n".join(system)


def _add_tools(body: JsonObject, request: ModelRequest, names: ToolNames, room: StrictRoom) -> None:
    choice, hosted = request.tool_choice, hosted_tools(request.parameters)
    check_choice(choice, names)
    declared = request.tools
    if choice.mode == "allowed":
        declared, hosted = tuple(tool for tool in declared if tool.name in choice.names), []
    tools: list[JsonObject] = []
    for tool in declared:
        parameters = with_wire_keys(tool.parameters)
        form = _form(parameters, strict=tool.strict and request.parameters.get("strict", True) is not False)
        strict = room.takes(form)
        schema = form.schema if strict else loose_form(parameters)
        shown: JsonObject = {"name": names.to_wire(tool.name), "description": tool.description, "input_schema": schema}
        tools.append({**shown, "strict": True} if strict else shown)
    if tools or hosted:
        body["tools"] = tools + hosted
        body["tool_choice"] = _choice(choice, names, parallel=request.parallel)


def _form(schema: JsonObject, *, strict: bool) -> Form:
    return strict_form(schema) if strict else Form(schema, False)


def _choice(choice: ToolChoice, names: ToolNames, *, parallel: bool) -> JsonObject:
    if choice.mode == "named":
        said: JsonObject = {"type": "tool", "name": names.to_wire(choice.names[0])}
    elif choice.mode == "allowed":
        said = {"type": "any" if choice.required else "auto"}
    else:
        said = {"type": _CHOICES[choice.mode]}
    return said if parallel or said["type"] == "none" else {**said, "disable_parallel_tool_use": True}


def _add_container(body: JsonObject, wanted: Any, known: str | None) -> None:
    """Later turns go on in the container of the last reply; a paused turn can only be resumed there."""
    if known is not None and not isinstance(wanted, str):
        body["container"] = {**wanted, "id": known} if isinstance(wanted, dict) else known
    elif wanted is not None:
        body["container"] = wanted


def _add_limits(body: JsonObject, limit: int | None) -> None:
    thinking = as_object(body.get("thinking"))
    given = thinking.get("budget_tokens") if thinking.get("type") == "enabled" else None
    budget = given if isinstance(given, int) else 0
    body["max_tokens"] = DEFAULT_MAX_TOKENS + budget if limit is None else limit
    if budget >= body["max_tokens"]:
        room = body["max_tokens"] > _SMALLEST_THINKING
        smaller = {**thinking, "budget_tokens": max(_SMALLEST_THINKING, body["max_tokens"] // 2)}
        body["thinking"] = smaller if room else {"type": "disabled"}
