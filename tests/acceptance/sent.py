"""What a request to a model says, read from the wire of each provider without the adapters' help."""

import json
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """One result as it was sent back. `output` is parsed JSON, or the text where it is none."""

    call_id: str
    output: Any
    is_error: bool = False


class Sent:
    """One request; `api` says how to read its body."""

    def __init__(self, api: str, body: Body) -> None:
        self.api = api
        self.body = body

    def results(self) -> list[Result]:
        """In the order in which they stand."""
        return [result for entry in self._entries() for result in _results(entry)]

    def proposals(self) -> list[str]:
        """The ids of the calls in the replies that are carried back."""
        return [call_id for entry in self._entries() for call_id in _proposals(entry)]

    def reasoning_before_its_call(self) -> bool:
        """The first reasoning is carried back, and stands before the first call, that before the first result."""
        kinds = [kind for entry in self._entries() for kind in _kinds(entry)]
        order = [kinds.index(kind) for kind in ("reasoning", "call", "result") if kind in kinds]
        return len(order) == 3 and order == sorted(order)

    def tools(self) -> dict[str, Body]:
        """What is offered, by name."""
        declared = self.body.get("tools") or []
        if self.api == "gemini-generate":
            declared = [function for tool in declared for function in tool["functionDeclarations"]]
        elif self.api == "openai-chat":
            declared = [tool["function"] for tool in declared]
        return {tool["name"]: tool for tool in declared}

    def tools_off(self) -> bool:
        """The model was told not to call any."""
        if self.api == "gemini-generate":
            return bool(self.body["toolConfig"]["functionCallingConfig"]["mode"] == "NONE")
        where = self.body.get("generation_config", {}) if self.api == "gemini-interactions" else self.body
        return where.get("tool_choice") in ("none", {"type": "none"})

    def one_call_at_a_time(self) -> bool | None:
        """None where the API has no way to say it."""
        if self.api.startswith("gemini"):
            return None
        if self.api == "anthropic-messages":
            return bool(self.body["tool_choice"].get("disable_parallel_tool_use", False))
        return not self.body["parallel_tool_calls"]

    def output_limit(self) -> Any:
        config = self.body.get("generationConfig") or self.body.get("generation_config") or self.body
        names = ("maxOutputTokens", "max_output_tokens", "max_completion_tokens", "max_tokens")
        return next((config[name] for name in names if name in config), None)

    def trusted(self) -> list[str]:
        """The texts that speak with the host's authority."""
        top = [self.body[name] for name in ("instructions", "system", "system_instruction") if self.body.get(name)]
        if "systemInstruction" in self.body:
            top += [part["text"] for part in self.body["systemInstruction"]["parts"]]
        told = [entry for entry in self._entries() if entry.get("role") in ("system", "developer")]
        return [*top, *(str(entry["content"]) for entry in told)]

    def _entries(self) -> list[Body]:
        """Messages, items, contents or steps."""
        for name in ("messages", "contents", "input"):
            if name in self.body:
                entries: list[Body] = self.body[name]
                return entries
        raise AssertionError(f"no conversation in {sorted(self.body)}")


def _blocks(entry: Body) -> list[Body]:
    """The parts of a message or content; an item or step is its own only part."""
    inner = entry.get("parts") or (entry.get("content") if "role" in entry else None)
    return inner if isinstance(inner, list) else [entry]


def _results(entry: Body) -> list[Result]:
    if entry.get("role") == "tool":
        return [_told(entry["tool_call_id"], entry["content"])]
    found = []
    for block in _blocks(entry):
        if block.get("type") == "function_call_output":
            found.append(_told(block["call_id"], block["output"]))
        elif block.get("type") == "tool_result":
            found.append(Result(block["tool_use_id"], _parsed(block["content"]), bool(block.get("is_error"))))
        elif block.get("type") == "function_result":
            found.append(Result(block["call_id"], _parsed(block["result"]), bool(block.get("is_error"))))
        elif "functionResponse" in block:
            [(key, output)] = block["functionResponse"]["response"].items()
            found.append(Result(block["functionResponse"].get("id", ""), output, key == "error"))
    return found


def _told(call_id: str, text: str) -> Result:
    """OpenAI's APIs have no error flag: the text says it."""
    output = _parsed(text)
    wrapped = isinstance(output, dict) and output.keys() == {"is_error", "output"}
    return Result(call_id, output["output"], output["is_error"]) if wrapped else Result(call_id, output)


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _proposals(entry: Body) -> list[str]:
    if entry.get("tool_calls"):
        return [made["id"] for made in entry["tool_calls"]]
    found = []
    for block in _blocks(entry):
        if block.get("type") == "function_call":
            found.append(block.get("call_id") or block["id"])
        elif block.get("type") == "tool_use":
            found.append(block["id"])
        elif "functionCall" in block:
            found.append(block["functionCall"].get("id", ""))
    return found


def _kinds(entry: Body) -> list[str]:
    """Which of reasoning, call and result, in order of appearance."""
    kinds = []
    if entry.get("reasoning_content"):
        kinds.append("reasoning")
    if entry.get("role") != "tool":
        for block in _blocks(entry):
            if block.get("type") in ("reasoning", "thinking") or block.get("thought") is True or block.get("summary"):
                kinds.append("reasoning")
            if _proposals(block):
                kinds.append("call")
            if _results(block):
                kinds.append("result")
        return kinds
    return ["result"]
