"""Failed model requests -> `Failure`, for all providers: by HTTP status and body, or by an error inside a 200.

Provider text decides some of it but never gets into `Failure.code`. The codes:

    AUTHENTICATION PERMISSION BILLING QUOTA_EXHAUSTED      PROVIDER_AUTH, not retryable
    BAD_REQUEST NOT_FOUND CONTEXT_LENGTH REQUEST_TOO_LARGE UNEXPECTED_STATUS CONTENT_FILTERED
                                                           PROVIDER_CONFIG, not retryable
    RATE_LIMITED TIMEOUT CONFLICT SERVER_ERROR OVERLOADED TRANSPORT
                                                           PROVIDER_UNAVAILABLE, retryable
    UNREADABLE_BODY INTERRUPTED                            PROTOCOL, retryable: a new request is a new sample
    UNEXPECTED_SHAPE UNKNOWN_REASON UNKNOWN_ERROR UNSUPPORTED_CALL SIGNATURE_MISSING MODEL_OUTPUT_INVALID
    REPLY_TOO_LARGE
                                                           PROTOCOL, not retryable

`CONTEXT_LENGTH` is the request-side twin of TRUNCATED: the transcript no longer fits the model. MODEL_OUTPUT_INVALID is
not retryable by the transport; the loop may ask once more out of its own budget.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from adapters.base import Boundary, Completion, Failure, HttpResponse, ModelRequest, Reply
from adapters.documents import UnreadableBody, as_list, as_object, as_text, read_json, request_id

CONTEXT_LENGTH = "CONTEXT_LENGTH"
MODEL_OUTPUT_INVALID = "MODEL_OUTPUT_INVALID"
INTERRUPTED = "INTERRUPTED"

_BILLING = frozenset(
    {
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
        "enforced_spend_limit_reached",
        "billing_error",
    }
)
_TOO_LONG = frozenset({"context_length_exceeded", "too_many_prompt_tokens", "model_context_window_exceeded"})
_CONTEXT_WORDS = re.compile(
    r"maximum context length|prompt is too long|context (?:window|limit)|input token count.{0,40} exceeds",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"credit balance is too low|specified API usage limits", re.IGNORECASE)  # Anthropic's 400
_NEVER_FITS = re.compile(r"request too large", re.IGNORECASE)
_TRY_AGAIN = re.compile(r"try again in (?:(\d{1,4})m(?!s))?(?:(\d{1,9}(?:\.\d{1,9})?)(ms|s))?", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")

# An error inside a 200 is treated as if its kind had been the status.
_AS_STATUS: tuple[tuple[re.Pattern[str], int], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), status)
    for pattern, status in (
        (r"overloaded|slow_down|unavailable", 529),
        (r"rate_?limit|too_many_requests|resource_exhausted", 429),
        (r"timeout|deadline_exceeded", 504),
        (r"authentication|unauthenticated|invalid_api_key|unauthorized", 401),
        (r"permission|forbidden", 403),
        (r"not_found", 404),
        (
            r"content_filter|bad_?request|^(invalid|image|data_residency|bio_policy|misalignment|failed_precondition)",
            400,
        ),
        (r"api_error|server_error|internal|badgateway|bad_gateway", 500),
    )
)


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What an error body says, whatever its shape. `kinds`: its codes, types and statuses as text, in that order."""

    kinds: tuple[str, ...]
    message: str
    details: tuple[Mapping[str, Any], ...]
    metadata: Mapping[str, Any]

    @property
    def raw(self) -> str | None:
        """The most telling kind, for `Reply.raw_reason`; only a short token, never a sentence."""
        tokens = [kind for kind in self.kinds if _TOKEN.fullmatch(kind)]
        return next((kind for kind in tokens if not kind.isdigit()), tokens[0] if tokens else None)


def error_facts(body: Any) -> ErrorFacts:
    """Accepts every shape on record: nested, flat, `error` or `detail` as text, a list of one, or no JSON at all."""
    if isinstance(body, list) and body:
        body = body[0]
    top = as_object(body)
    inner = as_object(top.get("error")) or top
    details = as_list(inner.get("details")) or [inner.get("details")]
    known = tuple(d for d in details if isinstance(d, dict))
    values = [inner.get("code"), inner.get("type"), inner.get("status"), top.get("code"), top.get("statusCode")]
    values += [d.get(key) for d in known for key in ("error_code", "reason")]
    kinds = tuple(str(v) for v in values if isinstance(v, str | int) and not isinstance(v, bool) and v != "")
    message = next((m for m in (inner.get("message"), top.get("error"), top.get("detail")) if isinstance(m, str)), "")
    return ErrorFacts(kinds, message, known, as_object(inner.get("metadata")))


# The reply for a whole document, None where there was none, with the head that it came under.
FromDocument = Callable[[Any, HttpResponse, ModelRequest], Reply]


def reply_of_body(response: HttpResponse, request: ModelRequest, from_document: FromDocument) -> Reply:
    """The reply for a plain response of any status."""
    if response.status >= 300:
        return http_failure(response)
    try:
        document = read_json(response.body)
    except UnreadableBody:
        document = None
    return from_document(document, response, request)


def unreadable_body(head: HttpResponse, identity: str | None = None) -> Reply:
    """The reply for a body that is no JSON."""
    failure = protocol_failure("UNREADABLE_BODY", retryable=True)
    return Reply(Completion.API_FAILURE, request_id=identity or request_id(head.headers), failure=failure)


def http_failure(response: HttpResponse) -> Reply:
    """The reply for a status of 300 and above (Azure's prompt filter makes it a REFUSAL)."""
    try:
        facts = error_facts(read_json(response.body))
    except UnreadableBody:
        facts = error_facts(None)
    identity = request_id(response.headers)
    if "content_filter" in facts.kinds and response.status == 400:
        return Reply(Completion.REFUSAL, raw_reason="content_filter", request_id=identity)
    failure = classify(response.status, facts, response.headers)
    return Reply(
        Completion.API_FAILURE, raw_reason=facts.raw or str(response.status), request_id=identity, failure=failure
    )


def classify(status: int, facts: ErrorFacts, headers: Mapping[str, str]) -> Failure:
    """The failure for a status and what the body says; `x-should-retry` overrides whether it may be repeated."""
    boundary, code, retryable = _kind(status, facts)
    told = headers.get("x-should-retry", "").lower()
    if told in ("true", "false") and code != MODEL_OUTPUT_INVALID:
        retryable = told == "true"
    return Failure(boundary, code, retryable, _retry_after(headers, facts) if retryable else None)


def in_band_failure(error: Any, headers: Mapping[str, str]) -> Failure:
    """The failure for an error object inside a 200, or in a stream; an error without any kind is UNKNOWN_ERROR."""
    facts = error_facts({"error": error} if not isinstance(error, dict) or "error" not in error else error)
    status = _in_band_status(facts)
    if status is None:
        return protocol_failure("UNKNOWN_ERROR")
    return classify(status, facts, {k: v for k, v in headers.items() if k != "x-should-retry"})


def protocol_failure(code: str, *, retryable: bool = False) -> Failure:
    return Failure(Boundary.PROTOCOL, code, retryable)


def _in_band_status(facts: ErrorFacts) -> int | None:
    if _BILLING.intersection(facts.kinds):
        return 429
    if "tool_use_failed" in facts.kinds or _TOO_LONG.intersection(facts.kinds):
        return 400
    for kind in facts.kinds:
        if kind.isascii() and kind.isdigit() and len(kind) == 3 and int(kind) >= 400:
            return int(kind)
        for pattern, status in _AS_STATUS:
            if pattern.search(kind):
                return status
    return None


def _kind(status: int, facts: ErrorFacts) -> tuple[Boundary, str, bool]:
    if status < 400:
        return Boundary.PROVIDER_CONFIG, "UNEXPECTED_STATUS", False
    if status == 429:
        return _rate_limit(facts)
    if status >= 500:
        busy = status in (503, 529) or any("overloaded" in kind for kind in facts.kinds)
        code = "TIMEOUT" if status == 504 else "OVERLOADED" if busy else "SERVER_ERROR"
        return Boundary.PROVIDER_UNAVAILABLE, code, True
    if status in (408, 409):
        return Boundary.PROVIDER_UNAVAILABLE, "TIMEOUT" if status == 408 else "CONFLICT", True
    if status in (401, 402, 403):
        return Boundary.PROVIDER_AUTH, {401: "AUTHENTICATION", 402: "BILLING", 403: "PERMISSION"}[status], False
    return _bad_request(status, facts)


def _rate_limit(facts: ErrorFacts) -> tuple[Boundary, str, bool]:
    if _BILLING.intersection(facts.kinds) or _daily_quota(facts):
        return Boundary.PROVIDER_AUTH, "QUOTA_EXHAUSTED", False
    if _NEVER_FITS.search(facts.message):  # larger than the whole limit per minute: waiting cannot help
        return Boundary.PROVIDER_CONFIG, "REQUEST_TOO_LARGE", False
    return Boundary.PROVIDER_UNAVAILABLE, "RATE_LIMITED", True


def _daily_quota(facts: ErrorFacts) -> bool:
    violations = [v for d in facts.details for v in as_list(d.get("violations"))]
    return any("perday" in as_text(as_object(v).get("quotaId")).lower() for v in violations)


def _bad_request(status: int, facts: ErrorFacts) -> tuple[Boundary, str, bool]:
    if "API_KEY_INVALID" in facts.kinds:
        return Boundary.PROVIDER_AUTH, "AUTHENTICATION", False
    if "tool_use_failed" in facts.kinds:
        return Boundary.PROTOCOL, MODEL_OUTPUT_INVALID, False
    if "content_filter" in facts.kinds:
        return Boundary.PROVIDER_CONFIG, "CONTENT_FILTERED", False
    if _BILLING.intersection(facts.kinds) or (status == 400 and _NO_CREDIT.search(facts.message)):
        return Boundary.PROVIDER_AUTH, "BILLING", False
    if _TOO_LONG.intersection(facts.kinds) or (status == 400 and _CONTEXT_WORDS.search(facts.message)):
        return Boundary.PROVIDER_CONFIG, CONTEXT_LENGTH, False
    code = {404: "NOT_FOUND", 413: "REQUEST_TOO_LARGE"}.get(status, "BAD_REQUEST")
    return Boundary.PROVIDER_CONFIG, code, False


def _retry_after(headers: Mapping[str, str], facts: ErrorFacts) -> float | None:
    """Seconds: `retry-after-ms`, then `retry-after`, then what the body says."""
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    named = headers.get("retry-after")
    seconds = _seconds(named)
    if seconds is None and named:
        seconds = _until(named, headers.get("date"))
    return seconds if seconds is not None else _body_delay(facts)


def _seconds(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < 1e6 else None  # also refuses NaN


def _until(moment: str, now: str | None) -> float | None:
    """An HTTP date counts from the answer's own `date` header: adapters read no clock."""
    try:
        return max(0.0, (parsedate_to_datetime(moment) - parsedate_to_datetime(now or "")).total_seconds())
    except (TypeError, ValueError):
        return None


def _body_delay(facts: ErrorFacts) -> float | None:
    for detail in facts.details:
        delay = as_text(detail.get("retryDelay"))
        if delay.endswith("s"):
            return _seconds(delay[:-1])
    for name, value in as_object(facts.metadata.get("headers")).items():
        if name.lower() == "retry-after":
            return _seconds(value)
    found = _TRY_AGAIN.search(facts.message)
    if not found or not any(found.groups()):
        return None
    minutes, amount, unit = found.groups()
    return int(minutes or 0) * 60 + float(amount or 0) / (1000 if unit and unit.lower() == "ms" else 1)
