"""`journal`: work on a journal's files while no service has them."""

from __future__ import annotations

from pathlib import Path

import click

from crewai_sidecar.cli.exits import MISCONFIGURED, one_line
from crewai_sidecar.errors import StartRefused

__all__ = ["journal"]


@click.group()
def journal() -> None:
    """Work on a journal while no service has it."""


@journal.command("accept-loss")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.confirmation_option(
    prompt="Every Action of the lost journal is forgotten, and a repeat of one would run again. Go on?"
)
def accept_loss(path: Path) -> None:
    """Accept that the journal at PATH is lost, so that the next start begins an empty one.

    For the refusal "journal lost" only: the lock file remembers a journal that is not there any more. Restore a backup
    if there is one.
    """
    from crewai_sidecar import journal as journals  # imported here: the client commands need no journal

    try:
        journals.accept_loss(path)
    except StartRefused as refusal:
        click.echo(f"crewai-sidecar: {one_line(refusal)}", err=True)
        raise SystemExit(MISCONFIGURED) from refusal
    click.echo(f"accepted: the next start begins an empty journal at {path}")
