"""Structured logs: one event name and ids per line, JSON, to standard error. No prompt, argument or result text."""

import logging
import os
import sys

import structlog


def configure() -> None:
    """Called once by each program of ours, never at import. `TURNQUEUE_LOG_LEVEL` sets the level."""
    level = logging.getLevelNamesMapping().get(os.environ.get("TURNQUEUE_LOG_LEVEL", "INFO").upper(), logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every URL, and URLs carry ids of other systems
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
