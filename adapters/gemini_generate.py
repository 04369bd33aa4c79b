"""Gemini generateContent (`POST /v1beta/models/{model}:generateContent`), also on Vertex AI, plain and streaming.

Base URL: `https://generativelanguage.googleapis.com`, with or without an API version, or Vertex's
`https://{location}-aiplatform.googleapis.com/v1/projects/{project}/locations/{location}` with an OAuth token as key.
Stateless: the model's contents go back as they came, thought signatures and all, parts not merged.
"""

from typing import Any
from urllib.parse import quote, urlsplit

from adapters.base import Accumulator, Endpoint, HttpRequest, HttpResponse, ModelRequest, Reply, ToolChoice
from adapters.common import Exchange, check_choice
from adapters.documents import as_list, as_object, text_or_none
from adapters.failures import (
    reply_of_body,
)
from adapters.gemini_candidate import API, GenerateAccumulator, reply_from_body
from adapters.gemini_common import (
    argument_object,
    declarations,
    http_request,
    json_or_text,
    merge,
    provider_items,
    resumed,
    said,
    shown_exchanges,
    sorted_out,
    token_of,
    versioned,
    wire_schema,
)
from adapters.names import ToolNames
from orchestrator.domain.errors import ConfigError
from orchestrator.domain.transcript import JsonObject, ModelReply, Observation

_TOP = frozenset(
    {"safetySettings", "cachedContent", "toolConfig", "labels", "serviceTier", "store"}
    | {"model", "contents", "systemInstruction", "continuationToken"}
)
RESERVED = frozenset(
    {
        "model",
        "contents",
        "systemInstruction",
        "continuationToken",
        "generationConfig.candidateCount",
        "generationConfig.maxOutputTokens",
        "toolConfig.functionCallingConfig.mode",
        "toolConfig.functionCallingConfig.allowedFunctionNames",
    }
)
# Google's word for "this call was not made by this model": history that another API wrote has no signatures.
NO_SIGNATURE = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
_NOT_RUN = "this call repeats the id of another call and was not run"


class GeminiGenerate:
    """See `adapters.base.Adapter`. Raises ConfigError for a request that this API cannot say."""

    api = API
    revision = "2"

    def to_request(self, request: ModelRequest, endpoint: Endpoint) -> HttpRequest:
        if request.previous_response_id is not None:
            raise ConfigError("SERVER_STATE_UNSUPPORTED", f"{self.api} keeps no state; set server_state to false")
        verb = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        url = f"{_model_url(endpoint.base_url, request.model)}:{verb}"
        return http_request(url, self._body(request), endpoint, stream=request.stream)

    def _body(self, request: ModelRequest) -> JsonObject:
        names = ToolNames(request.tools)
        body: JsonObject = {"contents": _contents(request, names)}
        if request.instructions:
            body["systemInstruction"] = {"parts": [{"text": request.instructions}]}
        _add_tools(body, request, names)
        config: JsonObject = {}
        if request.max_output_tokens is not None:
            config["maxOutputTokens"] = request.max_output_tokens
        if request.output_schema is not None:  # with tools in the same request: Gemini 3 and later
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = wire_schema(request.output_schema)
        if config:
            body["generationConfig"] = config
        stopped = resumed(request.items, API)
        if stopped is not None:
            body["continuationToken"] = token_of(stopped, API)
        merge(body, sorted_out(request.parameters, _TOP, "generationConfig"), RESERVED)
        return body

    def from_response(self, response: HttpResponse, request: ModelRequest) -> Reply:
        return reply_of_body(response, request, reply_from_body)

    def accumulator(self, head: HttpResponse, request: ModelRequest) -> Accumulator:
        return GenerateAccumulator(head, request)


def _model_url(base_url: str, model: str) -> str:
    base = versioned(base_url)
    if "/projects/" in urlsplit(base).path and "/publishers/" not in base:
        base = f"{base}/publishers/google"
    name = model if model.startswith(("models/", "tunedModels/", "publishers/")) else f"models/{model}"
    return f"{base}/{quote(name)}"


def _add_tools(body: JsonObject, request: ModelRequest, names: ToolNames) -> None:
    check_choice(request.tool_choice, names)
    tools = _hosted(request.parameters.get("tools") or [])
    functions = declarations(request, names, "parametersJsonSchema")
    if functions:
        tools.append({"functionDeclarations": functions})
        body["toolConfig"] = {"functionCallingConfig": _choice(request.tool_choice, names)}
    if tools:
        body["tools"] = tools


def _hosted(tools: Any) -> list[JsonObject]:
    """Provider-side tools that the profile adds, like `{"googleSearch": {}}`; functions come only from us."""
    for hosted in tools:
        if not isinstance(hosted, dict) or {"functionDeclarations", "function_declarations"} & hosted.keys():
            raise ConfigError("BAD_PARAMETERS", "profile parameter 'tools' may only list provider-side tools")
    return list(tools)


def _choice(choice: ToolChoice, names: ToolNames) -> JsonObject:
    """A subset that need not be called is VALIDATED: the API takes names only there and with ANY."""
    if choice.mode in ("named", "allowed"):
        mode = "ANY" if choice.mode == "named" or choice.required else "VALIDATED"
        return {"mode": mode, "allowedFunctionNames": [names.to_wire(name) for name in choice.names]}
    return {"mode": {"auto": "AUTO", "required": "ANY", "none": "NONE"}[choice.mode]}


# --- history -----------------------------------------------------------------------------------------------------


def _contents(request: ModelRequest, names: ToolNames) -> list[JsonObject]:
    contents: list[JsonObject] = []
    for exchange in shown_exchanges(request.items, API):
        if exchange.reply is not None:
            echoed = _model_contents(exchange.reply, names)
            contents += echoed
            if exchange.reply.calls:
                contents.append({"role": "user", "parts": _responses(exchange, exchange.reply, echoed)})
        contents += [{"role": "user", "parts": [{"text": said(item)}]} for item in exchange.others]
    return contents


def _model_contents(reply: ModelReply, names: ToolNames) -> list[JsonObject]:
    items = [item for item in provider_items(reply) if item.get("parts")]
    if reply.api == API and items and len(_calls(items)) == len(reply.calls):
        return [item if item.get("role") else {**item, "role": "model"} for item in items]
    parts: list[JsonObject] = [{"text": reply.text}] if reply.text else []
    for index, call in enumerate(reply.calls):
        function = {"name": names.to_wire(call.name), "args": argument_object(call.arguments_text)}
        parts.append({"functionCall": function} | ({} if index else {"thoughtSignature": NO_SIGNATURE}))
    return [{"role": "model", "parts": parts}] if parts else []


def _calls(contents: list[JsonObject]) -> list[JsonObject]:
    parts = (part for content in contents for part in as_list(content.get("parts")))
    return [as_object(part["functionCall"]) for part in parts if isinstance(part, dict) and "functionCall" in part]


def _responses(exchange: Exchange, reply: ModelReply, echoed: list[JsonObject]) -> list[JsonObject]:
    """One response per call, in call order: the API counts them. An id goes back only where the provider gave one."""
    waiting: dict[str, list[Observation]] = {}
    for observation in exchange.results:
        waiting.setdefault(observation.call_id, []).append(observation)
    parts: list[JsonObject] = []
    for call, function in zip(reply.calls, _calls(echoed), strict=True):
        left = waiting.get(call.call_id)
        response = _response(left.pop(0)) if left else {"error": _NOT_RUN}
        given = text_or_none(function.get("id"))
        shown = {"name": function.get("name"), "response": response}
        parts.append({"functionResponse": {"id": given, **shown} if given else shown})
    return parts


def _response(observation: Observation) -> JsonObject:
    return {"error" if observation.is_error else "output": json_or_text(observation.output)}
