"""The options that every client command has, and the connector that they make."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from crewai_sidecar.cli.exits import WRONG_USAGE, as_exit_code, one_line
from crewai_sidecar.connector import Sidecar, token_from_file

__all__ = ["client_command"]

TOKEN_VARIABLE = "AIP_CREWAI_BEARER_TOKEN"  # noqa: S105  # the variable's name
TOKEN_FILE_VARIABLE = "AIP_CREWAI_BEARER_TOKEN_FILE"  # noqa: S105  # the variable's name


def client_command(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command --url, --token-file and --json, and hand it the connector first and `as_json` by name.

    The connector's errors end the command with one line and an exit code.
    """

    @click.option(
        "--url",
        envvar="CREWAI_SIDECAR_URL",
        show_envvar=True,
        default="http://127.0.0.1:8090",
        show_default=True,
        help="Address of the contract port.",
    )
    @click.option(
        "--token-file",
        envvar=TOKEN_FILE_VARIABLE,
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"File with the bearer token. Without it the token is taken from {TOKEN_VARIABLE}.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Write JSON, one object a line, for machines.")
    @functools.wraps(function)
    def command(*args: Any, url: str, token_file: Path | None, as_json: bool, **options: Any) -> None:
        token = _source(token_file) if token_file is not None else (os.environ.get(TOKEN_VARIABLE) or None)
        with as_exit_code():
            try:
                sidecar = Sidecar(url, token=token)
            except ValueError as error:
                raise click.UsageError(str(error)) from error
            with sidecar:
                function(sidecar, *args, as_json=as_json, **options)

    return command


def _source(file: Path) -> Callable[[], str]:
    """Make the token's source, having read it once: a file without one ends the command before anything is sent."""
    source = token_from_file(file)
    try:
        source()
    except (OSError, ValueError) as error:
        fact = (isinstance(error, OSError) and error.strerror) or "the file is not UTF-8"
        click.echo(f"crewai-sidecar: no token in {one_line(file)}: {fact}", err=True)
        raise SystemExit(WRONG_USAGE) from error
    return source
