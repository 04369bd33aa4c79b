"""Result projection: what the model is told (`model_result`) and its protected twin for the audit.

A result is data. It is validated against the output model, cut down to the allowlisted fields, freed of credentials,
and capped in size before anything is stored or shown.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from executors import redaction
from executors.registry import ToolSpec

MAX_MESSAGE = 500  # characters of a downstream's own words that the model may see
_CREDENTIAL = re.compile(
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}|\bAKIA[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}|(?i:\bbearer\s+)[A-Za-z0-9._~+/-]{16,}=*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
    re.S,
)


class BadResult(Exception):
    """The handler's answer does not fit its output model. Carries no value of the answer."""


@dataclass(frozen=True, slots=True)
class Observation:
    """`text` goes to the model as it is; `state` in it is `succeeded`, `failed` or `rejected`."""

    text: str
    is_error: bool
    code: str | None = None
    untrusted: bool = False  # it carries text that people outside wrote

    @property
    def size(self) -> int:
        return len(self.text.encode())


def success(spec: ToolSpec, data: Any) -> Observation:
    """The observation of a confirmed result, from `validated`'s return value."""
    text = _capped(spec, {"state": "succeeded", "data": data})
    return Observation(text, is_error=False, untrusted=spec.untrusted)


def refusal(spec: ToolSpec, code: str, message: str) -> Observation:
    """The observation of a downstream's definite refusal, in its own words."""
    return replace(error("failed", code, message), untrusted=spec.untrusted)


def confirmed_without_result(reference: str) -> Observation:
    """An operator knows that it happened, and not the tool's own answer."""
    body = {"state": "succeeded", "data": None, "reference": clean(reference)[:MAX_MESSAGE]}
    return Observation(_dump(body | {"notice": "Confirmed by an operator."}), is_error=False)


def stable_code(text: str) -> str:
    """A code from outside as we store it: capitals, digits and `_`, at most 64."""
    return re.sub(r"[^A-Z0-9]+", "_", text.upper()).strip("_")[:64] or "REFUSED"


def error(state: str, code: str, message: str = "") -> Observation:
    """The observation of anything else. `code` is stable; `message` is cut and freed of credentials."""
    body = {"state": state, "code": code}
    if message:
        body["message"] = clean(message)[:MAX_MESSAGE]
    return Observation(_dump(body), is_error=True, code=code)


def answered(answer: Any) -> Observation:
    """A person's answer to the model's question, as it was given."""
    return Observation(_dump({"state": "succeeded", "data": {"answer": answer}}), is_error=False)


def marked(observation: Observation, marks: Mapping[str, Any]) -> Observation:
    """The observation with more fields, which say something about it."""
    if not marks:
        return observation
    return replace(observation, text=_dump(json.loads(observation.text) | dict(marks)))


def validated(spec: ToolSpec, answer: Any) -> Any:
    """The answer as allowlisted JSON data. Raises BadResult; the message names fields, never values."""
    try:
        model = answer if type(answer) is spec.result else spec.result.model_validate(_plain(answer))
        shown = None if spec.expose is None else {name.partition(".")[0] for name in spec.expose}
        data = redaction.allowed(spec.result, model.model_dump(mode="json", include=shown), spec.expose)
    except ValidationError as problem:
        fields = sorted({".".join(map(str, e["loc"])) or "(whole)" for e in problem.errors(include_input=False)})
        raise BadResult(f"result does not fit {spec.result.__name__}: {', '.join(fields)}") from None
    return _scrub(data)


def reference(spec: ToolSpec, answer: Any) -> str | None:
    """The downstream's own id of the effect, where the spec says which field it is."""
    if spec.reference_field is None:
        return None
    value = (
        answer.get(spec.reference_field) if isinstance(answer, dict) else getattr(answer, spec.reference_field, None)
    )
    return None if value is None else storable(str(value))


def _plain(answer: Any) -> Any:
    return answer.model_dump() if isinstance(answer, BaseModel) else answer


def storable(text: str) -> str:
    """The text without what PostgreSQL (NUL) or UTF-8 (lone surrogates) refuses."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def clean(text: str) -> str:
    """A downstream's words, fit to be stored and shown: no credentials in them."""
    return redaction.without_credentials(_CREDENTIAL.sub(redaction.REDACTED, storable(text)))


def _scrub(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_scrub(v) for v in value]
    if isinstance(value, dict):
        return {k: _scrub(v) for k, v in value.items()}
    return value


def _dump(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def _capped(spec: ToolSpec, body: dict[str, Any]) -> str:
    """Too large: the head of the data as text, a notice, and the SHA-256 of the whole data's JSON text."""
    text = _dump(body)
    if len(text.encode()) <= spec.max_result_bytes:
        return text
    whole = _dump(body["data"]).encode()
    cut = {
        "state": "succeeded",
        "truncated": True,
        "notice": f"The result has {len(whole)} bytes; only its beginning is shown.",
        "sha256": hashlib.sha256(whole).hexdigest(),
        "data_head": "",
    }
    # JSON text inside a JSON string at most doubles: its quotes and backslashes are escaped once more.
    room = max(0, spec.max_result_bytes - len(_dump(cut).encode())) // 2
    return _dump(cut | {"data_head": whole[:room].decode(errors="ignore")})


# What became of a call whose request the caller corrected in the meantime.
SUPERSEDED = error("superseded", "SUPERSEDED", "The request was corrected before this had a result.")
