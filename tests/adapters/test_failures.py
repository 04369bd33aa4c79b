"""The table of HTTP statuses and error bodies, for every provider."""

import json
from typing import Any

import pytest

from adapters.base import Boundary, Completion, HttpResponse
from adapters.failures import http_failure, in_band_failure

AUTH, CONFIG = Boundary.PROVIDER_AUTH, Boundary.PROVIDER_CONFIG
AWAY, PROTOCOL = Boundary.PROVIDER_UNAVAILABLE, Boundary.PROTOCOL
_DAILY = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}


def _error(**fields: Any) -> dict[str, Any]:
    return {"error": fields}


@pytest.mark.parametrize(
    ("status", "body", "boundary", "code", "retryable"),
    [
        (302, None, CONFIG, "UNEXPECTED_STATUS", False),
        (400, _error(message="x", type="invalid_request_error"), CONFIG, "BAD_REQUEST", False),
        (400, _error(code="context_length_exceeded"), CONFIG, "CONTEXT_LENGTH", False),
        (400, {"object": "error", "message": "maximum context length is 8"}, CONFIG, "CONTEXT_LENGTH", False),
        (400, _error(code="tool_use_failed", failed_generation="<fn>"), PROTOCOL, "MODEL_OUTPUT_INVALID", False),
        (
            400,
            _error(status="INVALID_ARGUMENT", details=[{"reason": "API_KEY_INVALID"}]),
            AUTH,
            "AUTHENTICATION",
            False,
        ),
        (400, [_error(code=400, status="INVALID_ARGUMENT")], CONFIG, "BAD_REQUEST", False),
        (401, {"detail": "Unauthorized"}, AUTH, "AUTHENTICATION", False),
        (402, _error(type="billing_error"), AUTH, "BILLING", False),
        (403, "<html>denied</html>", AUTH, "PERMISSION", False),
        (404, {"error": "no such model"}, CONFIG, "NOT_FOUND", False),
        (413, "<html>too large</html>", CONFIG, "REQUEST_TOO_LARGE", False),
        (422, {"detail": [{"loc": ["body"]}]}, CONFIG, "BAD_REQUEST", False),
        (408, None, AWAY, "TIMEOUT", True),
        (409, None, AWAY, "CONFLICT", True),
        (429, _error(code="RateLimitReached", details="text"), AWAY, "RATE_LIMITED", True),
        (429, _error(type="insufficient_quota", code="credit_balance_exhausted"), AUTH, "QUOTA_EXHAUSTED", False),
        (
            429,
            _error(type="rate_limit_error", details={"error_code": "enforced_spend_limit_reached"}),
            AUTH,
            "QUOTA_EXHAUSTED",
            False,
        ),
        (429, _error(status="RESOURCE_EXHAUSTED", details=[_DAILY]), AUTH, "QUOTA_EXHAUSTED", False),
        (
            429,
            _error(code="rate_limit_exceeded", message="Request too large for m on tokens per min"),
            CONFIG,
            "REQUEST_TOO_LARGE",
            False,
        ),
        (500, _error(type="api_error"), AWAY, "SERVER_ERROR", True),
        (502, "<html>", AWAY, "SERVER_ERROR", True),
        (503, _error(code="slow_down"), AWAY, "OVERLOADED", True),
        (504, None, AWAY, "TIMEOUT", True),
        (529, _error(type="overloaded_error"), AWAY, "OVERLOADED", True),
    ],
)
def test_status_table(status: int, body: Any, boundary: Boundary, code: str, retryable: bool) -> None:
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    failure = http_failure(HttpResponse(status, {}, raw)).failure
    assert failure is not None
    assert (failure.boundary, failure.code, failure.retryable) == (boundary, code, retryable)


def test_azure_prompt_filter_is_a_refusal() -> None:
    reply = http_failure(HttpResponse(400, {}, json.dumps(_error(code="content_filter", param="prompt")).encode()))
    assert (reply.completion, reply.failure) == (Completion.REFUSAL, None)


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after-ms": "19842", "retry-after": "20"}, {}, 19.842),
        ({"retry-after": "12"}, {}, 12.0),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT", "date": "Mon, 30 Nov 2026 10:00:00 GMT"}, {}, 30.0),
        ({"retry-after": "Mon, 30 Nov 2026 10:00:30 GMT"}, {}, None),  # no clock of our own
        ({"retry-after": "nan"}, {}, None),
        ({"retry-after": "-1"}, {}, None),
        ({}, _error(details=[{"@type": "RetryInfo", "retryDelay": "48s"}]), 48.0),
        ({}, _error(message="Please try again in 120ms."), 0.12),
        ({}, _error(message="Please try again in 6m0s."), 360.0),
        ({}, _error(metadata={"headers": {"Retry-After": "3"}}), 3.0),
        ({}, {}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], body: Any, seconds: float | None) -> None:
    failure = http_failure(HttpResponse(429, headers, json.dumps(body).encode())).failure
    assert failure is not None
    assert failure.retry_after == seconds


@pytest.mark.parametrize(("status", "told", "retryable"), [(429, "false", False), (400, "true", True)])
def test_the_providers_own_word_on_retrying_wins(status: int, told: str, retryable: bool) -> None:
    failure = http_failure(HttpResponse(status, {"x-should-retry": told}, b"{}")).failure
    assert failure is not None
    assert failure.retryable is retryable


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ({"type": "overloaded_error"}, "OVERLOADED", True),
        ({"code": "rate_limit_exceeded"}, "RATE_LIMITED", True),
        ({"code": "insufficient_quota"}, "QUOTA_EXHAUSTED", False),
        ({"code": "server_error"}, "SERVER_ERROR", True),
        ({"code": "vector_store_timeout"}, "TIMEOUT", True),
        ({"code": "invalid_prompt"}, "BAD_REQUEST", False),
        ({"code": "bio_policy"}, "BAD_REQUEST", False),
        ({"code": "tool_use_failed", "type": "invalid_request_error"}, "MODEL_OUTPUT_INVALID", False),
        ({"code": 503}, "OVERLOADED", True),
        ({"message": "who knows"}, "UNKNOWN_ERROR", False),
        ("text", "UNKNOWN_ERROR", False),
        (True, "UNKNOWN_ERROR", False),
    ],
)
def test_errors_inside_a_200(error: Any, code: str, retryable: bool) -> None:
    failure = in_band_failure(error, {})
    assert (failure.code, failure.retryable) == (code, retryable)
