"""Structured logs: one event name and ids per line, JSON, to standard error. No prompt, argument or result text.

An exception is logged by its type and place: its text may hold anything (a row that PostgreSQL refused, a value that
pydantic did). `TURNQUEUE_LOG_LEVEL=DEBUG` asks for the text too. This process's credentials
are taken out of every line.
"""

import logging
import os
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any

import structlog

from executors.redaction import without_credentials

_CAUSES = 5
_FRAMES = 12


def configure() -> None:
    """Called once by each program of ours, never at import. `TURNQUEUE_LOG_LEVEL` sets the level."""
    level = logging.getLevelNamesMapping().get(os.environ.get("TURNQUEUE_LOG_LEVEL", "INFO").upper(), logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every URL, and URLs carry ids of other systems
    logging.setLogRecordFactory(_clean_record)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if level <= logging.DEBUG else _place_of_exception,
            structlog.processors.JSONRenderer(),
            _without_credentials,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # a line in one write: Celery logs there too
        cache_logger_on_first_use=True,
    )


class _CleanRecord(logging.LogRecord):
    """A line of a library's: Celery, kombu and others write their own."""

    def getMessage(self) -> str:  # noqa: N802 - logging's own name
        return without_credentials(super().getMessage())


def _clean_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
    return _CleanRecord(*args, **kwargs)


def _without_credentials(_logger: Any, _method: str, line: Any) -> str:
    """After the renderer: `line` is its text."""
    return without_credentials(str(line))


def _place_of_exception(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """`exception`: types from the outermost to the cause; `at`: the innermost frames, as file:line function."""
    given = event.pop("exc_info", None)
    error = given if isinstance(given, BaseException) else sys.exc_info()[1] if given else None
    if error is not None:
        types: list[str] = []
        seen: BaseException | None = error
        while seen is not None and len(types) < _CAUSES:
            types.append(f"{type(seen).__module__}.{type(seen).__qualname__}")
            seen = seen.__cause__ or seen.__context__
        frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
        event["exception"] = types
        event["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return event
