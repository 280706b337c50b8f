"""`serve`: the service itself, set up by AIP_CREWAI_* variables."""

from __future__ import annotations

import click

from crewai_sidecar.cli.exits import MISCONFIGURED, one_line
from crewai_sidecar.errors import StartRefused

__all__ = ["serve"]


@click.command()
def serve() -> None:
    """Run the service until SIGTERM.

    Its settings are the AIP_CREWAI_* environment variables. A start that is refused says why in one line and ends with
    code 78.
    """
    # Imported here: the client commands must not load a web server.
    from crewai_sidecar.server import serve as run_service
    from crewai_sidecar.settings import read_settings

    try:
        run_service(read_settings())
    except StartRefused as refusal:
        click.echo(f"crewai-sidecar: {one_line(refusal)}", err=True)
        raise SystemExit(MISCONFIGURED) from refusal
