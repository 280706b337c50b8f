"""Log lines: JSON on standard error, with the Action's id where there is one."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from crewai_sidecar.telemetry.logs import JsonLines, configure_logging

log = logging.getLogger("crewai_sidecar.some.module")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Leave the process's logging as it was found."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def test_a_line_has_time_level_logger_message_and_the_extra_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """One line of ASCII, whatever is in it."""
    configure_logging("info")
    log.info("run %s", "ended\nü", extra={"action_id": "act_1", "seconds": 1.5, "place": sys.path.__class__})
    (line,) = written(capsys)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "crewai_sidecar.some.module",
        "message": "run ended\nü",
        "action_id": "act_1",
        "seconds": 1.5,
        "place": "<class 'list'>",
    }


def test_an_exception_is_one_line_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """Not thirty lines that no collector puts together again."""
    configure_logging("info")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        log.exception("failed", extra={"action_id": "act_1"})
    (line,) = written(capsys)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_is_the_least_that_is_logged(capsys: pytest.CaptureFixture[str], level: str, count: int) -> None:
    """AIP_CREWAI_LOG_LEVEL."""
    configure_logging(level)
    for write in (log.debug, log.info, log.warning, log.error):
        write("x")
    assert len(written(capsys)) == count


def test_configuring_twice_does_not_double_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """And libraries do not announce their own life."""
    configure_logging("info")
    configure_logging("info")
    logging.getLogger("uvicorn.error").info("Started server process")
    log.info("x")
    assert len(written(capsys)) == 1


def test_a_request_that_the_shutdown_cancels_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault of the application is one, and is logged as it was."""
    configure_logging("info")
    server = logging.getLogger("uvicorn.error")
    server.error("Exception in ASGI application", exc_info=asyncio.CancelledError())
    server.error("Exception in ASGI application", exc_info=KeyError("x"))
    (line,) = written(capsys)
    assert line["exception"] == "KeyError: 'x'"


def test_a_warning_is_a_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else may write to standard error."""
    configure_logging("info")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("odd", UserWarning, stacklevel=1)
    (line,) = written(capsys)
    assert (line["level"], line["logger"]) == ("warning", "py.warnings")
    assert "odd" in line["message"]


def test_values_that_json_has_no_form_for_do_not_lose_the_line() -> None:
    """They are written as text."""
    record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": "m", "what": {1}, "text": "\ud800"})
    assert json.loads(JsonLines().format(record))["what"] == "{1}"
