"""Logs: one JSON object a line on standard error, with the Action's id where there is one.

A line has what its place in the code gives it and nothing else: no token, no key, no input, no output. What crews
print goes another way (runner/output.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime

from crewai_sidecar.clock import timestamp

__all__ = ["JsonLines", "configure_logging"]

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}
"""Attributes that every LogRecord has, and uvicorn's coloured copy of its message; others came with `extra`."""

_QUIET = ("uvicorn", "uvicorn.error", "asyncio", "httpx", "httpcore")
"""Loggers of libraries that announce their own life at info."""


class JsonLines(logging.Formatter):
    """Writes a record as one line of ASCII JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, logger, message, the extra fields, and the traceback if there is one."""
        line: dict[str, object] = {
            "time": timestamp(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str, separators=(",", ":"))


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Drop uvicorn's traceback of a request that it has itself cancelled, when readers stall a shutdown."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def configure_logging(level: str) -> None:
    """Send everything that is logged in this process, warnings among it, to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    logging.captureWarnings(True)
