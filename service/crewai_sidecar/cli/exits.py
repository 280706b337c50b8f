"""Exit codes, and the one place where an error becomes a line on stderr and a code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from crewai_sidecar.connector import ConnectorError, Refused, Unreachable

__all__ = ["FAILED", "MISCONFIGURED", "UNAVAILABLE", "WRONG_USAGE", "as_exit_code", "one_line"]

FAILED = 1
"""The Action did not complete, or the service refused the request."""

WRONG_USAGE = 2
"""An argument cannot be used; click ends with it too."""

UNAVAILABLE = 69
"""EX_UNAVAILABLE of sysexits: nobody answers there, or the service takes no work now."""

MISCONFIGURED = 78
"""EX_CONFIG of sysexits: the service must not start as it is set up."""


def one_line(text: object) -> str:
    """Put a text on one line, control characters escaped: what others wrote must not steer the terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in str(text))


@contextlib.contextmanager
def as_exit_code() -> Iterator[None]:
    """Turn the connector's errors into one line on stderr and an exit code."""
    try:
        yield
    except ConnectorError as error:
        click.echo(f"crewai-sidecar: {one_line(error)}", err=True)
        away = isinstance(error, Unreachable) or (isinstance(error, Refused) and error.unavailable)
        raise SystemExit(UNAVAILABLE if away else FAILED) from error
    except BrokenPipeError:
        raise  # click ends quietly for a reader that went away
    except OSError as error:
        click.echo(f"crewai-sidecar: {one_line(error)}", err=True)
        raise SystemExit(FAILED) from error
