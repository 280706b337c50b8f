"""`events`, `show`, `list`: what the service knows. Nothing here changes anything."""

from __future__ import annotations

import sys

import click

from crewai_sidecar.cli.connection import client_command
from crewai_sidecar.cli.exits import one_line
from crewai_sidecar.cli.progress import Progress, json_line, record_lines
from crewai_sidecar.connector import RecordView, Sidecar
from crewai_sidecar.model import Status

__all__ = ["events", "list_jobs", "show"]

PAGE = 100


@click.command()
@click.argument("action_id")
@click.option("--follow", "-f", is_flag=True, help="Go on to the ending, across lost connections.")
@click.option("--cursor", type=click.IntRange(min=0), default=0, show_default=True, help="First event to show.")
@client_command
def events(sidecar: Sidecar, action_id: str, follow: bool, cursor: int, as_json: bool) -> None:
    """Show the events of ACTION_ID."""
    progress = Progress(sys.stdout, as_json=as_json)
    try:
        for event in sidecar.follow(action_id, cursor) if follow else sidecar.events(action_id, cursor).events:
            progress.show(event)
    finally:
        progress.close()


@click.command()
@click.argument("action_id")
@client_command
def show(sidecar: Sidecar, action_id: str, as_json: bool) -> None:
    """Show the record of ACTION_ID, its output included."""
    view = sidecar.status(action_id)
    if as_json:
        click.echo(json_line(view.answer))
    else:
        record_lines(view, click.echo)


@click.command("list")
@click.option("--status", type=click.Choice([str(one) for one in Status]), help="Only records with this status.")
@click.option("--crew", help="Only records of this crew.")
@click.option("--to-be-reconciled", is_flag=True, help="Only records whose effect has to be found out.")
@client_command
def list_jobs(sidecar: Sidecar, status: str | None, crew: str | None, to_be_reconciled: bool, as_json: bool) -> None:
    """List the records."""
    after: str | None = None
    while True:
        page = sidecar.list_jobs(
            status=status, crew_id=crew, to_be_reconciled=to_be_reconciled or None, limit=PAGE, after=after
        )
        for view in page.jobs:
            click.echo(json_line(view.answer) if as_json else _row(view))
        after = page.next
        if after is None:
            return


def _row(view: RecordView) -> str:
    marks = [str(part) for part in (view.cause, view.error_type) if part]
    if view.uncertain_outcome:
        marks.append("uncertain_outcome")
    if view.to_be_reconciled:
        marks.append("to_be_reconciled")
    action_id, crew_id = one_line(view.action_id), one_line(view.crew_id)
    return f"{action_id:<36}  {crew_id:<16}  {view.operation:<15}  {view.status:<9}  {' '.join(marks)}".rstrip()
