"""`cancel`, `archive`, `drain`: orders to a running service. Each is sent once."""

from __future__ import annotations

import click

from crewai_sidecar.cli.connection import client_command
from crewai_sidecar.cli.exits import FAILED
from crewai_sidecar.cli.progress import json_line
from crewai_sidecar.cli.submit import ending_line
from crewai_sidecar.connector import Sidecar
from crewai_sidecar.model import Status

__all__ = ["archive", "cancel", "drain"]


@click.command()
@click.argument("action_id")
@click.option("--crew", required=True, help="Crew of the Action: a cancel names both.")
@click.option("--reason", help="Kept in the record.")
@client_command
def cancel(sidecar: Sidecar, action_id: str, crew: str, reason: str | None, as_json: bool) -> None:
    """Stop ACTION_ID and wait until its ending is on disk.

    Local work has then stopped; what a provider was asked to do may go on. Ends with 0 where the Action ended
    cancelled and with 1 where it had already ended in another way.
    """
    view = sidecar.cancel(action_id, crew, reason=reason)
    click.echo(json_line(view.answer) if as_json else ending_line(view))
    if view.status is not Status.CANCELLED:
        raise SystemExit(FAILED)


@click.command()
@click.argument("action_id")
@click.option("--yes", is_flag=True, required=True, help="Confirm: the record is gone afterwards.")
@client_command
def archive(sidecar: Sidecar, action_id: str, yes: bool, as_json: bool) -> None:
    """Archive the record of ACTION_ID, which must have ended. The Action ID stays spent."""
    del yes  # click has required it
    sidecar.archive(action_id)
    click.echo(json_line({"archived": True, "action_id": action_id}) if as_json else f"archived {action_id}")


@click.command()
@client_command
def drain(sidecar: Sidecar, as_json: bool) -> None:
    """Tell the service to take no new Action. What runs goes on, and everything can still be read."""
    sidecar.drain()
    click.echo(json_line({"draining": True}) if as_json else "draining")
