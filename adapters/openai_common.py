"""What the two OpenAI wire formats share: URLs, headers, tool list, observations."""

from collections.abc import Iterator
from urllib.parse import quote, urlsplit

from adapters.base import Endpoint, HttpRequest, ModelRequest
from adapters.documents import UnreadableBody, read_json, write_json
from adapters.names import ToolNames
from adapters.schema import strict_form
from orchestrator.domain.transcript import JsonObject, Observation

_OPENAI_HOST = "api.openai.com"


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


def add_stream(body: JsonObject, request: ModelRequest, endpoint: Endpoint, *, usage: bool = False) -> None:
    """Ask for a stream, with usage where that is an option. OpenAI itself pads its deltas unless told not to; other
    servers do not know that option, and some answer 400 to it."""
    if not request.stream:
        return
    options: JsonObject = {"include_usage": True} if usage else {}
    host = urlsplit(endpoint.base_url).hostname or ""
    if endpoint.azure_deployment is None and (host == _OPENAI_HOST or host.endswith(f".{_OPENAI_HOST}")):
        options["include_obfuscation"] = False
    body["stream"] = True
    if options:
        body["stream_options"] = options


def output_format(schema: JsonObject) -> JsonObject:
    """Name, schema and strict of a structured answer."""
    form = strict_form(schema)
    return {"name": "output", "schema": form.schema, "strict": form.strict}


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
