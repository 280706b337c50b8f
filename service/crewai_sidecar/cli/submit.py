"""`submit`: start an Action and watch it to its end."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import click

from crewai_sidecar import jsontext
from crewai_sidecar.cli.connection import client_command
from crewai_sidecar.cli.exits import FAILED, one_line
from crewai_sidecar.cli.progress import Progress, json_line, output_text
from crewai_sidecar.connector import Action, Event, RecordView, Refused, Sidecar, Unreachable
from crewai_sidecar.model import Operation, Status

__all__ = ["ending_line", "submit"]

INTERRUPTED = 130


@click.command()
@click.argument("crew")
@click.option("--input", "input_text", default="{}", metavar="JSON|@FILE", help="Input of the operation. @- is stdin.")
@click.option(
    "--operation",
    type=click.Choice([str(one) for one in Operation]),
    default="run",
    show_default=True,
    help="Operation.",
)
@click.option("--action-id", help="Action ID. Default: act_ and 32 random hex digits.")
@click.option("--key", help="Idempotency-Key. Default: a random one.")
@click.option("--timeout-ms", type=click.IntRange(1, 3_600_000), help="Bound of the operation in milliseconds.")
@click.option("--detach", is_flag=True, help="Return as soon as the Action is on the service's disk.")
@client_command
def submit(
    sidecar: Sidecar,
    crew: str,
    input_text: str,
    operation: str,
    action_id: str | None,
    key: str | None,
    timeout_ms: int | None,
    detach: bool,
    as_json: bool,
) -> None:
    """Start an Action of CREW, show its events as they happen, then its output.

    Events go to stderr and the output to stdout; with --json the events go to stdout and the last one is the ending.
    Sent again with the same --action-id and --key, the Action is not run again: the service answers from its journal.
    """
    action = Action(
        crew_id=crew,
        action_id=action_id or f"act_{uuid.uuid4().hex}",
        idempotency_key=key or str(uuid.uuid4()),
        operation=operation,
        input=_read_input(input_text),
        timeout_ms=timeout_ms,
    )
    if detach:
        accepted = sidecar.submit_async(action)
        answer = {"action_id": action.action_id, "idempotency_key": action.idempotency_key}
        click.echo(json_line({**accepted.answer, **answer}) if as_json else action.action_id)
        return
    click.echo(f"Action {action.action_id}  key {one_line(action.idempotency_key)}", err=True)
    progress = Progress(sys.stdout if as_json else sys.stderr, as_json=as_json)
    try:
        with contextlib.closing(_to_the_ending(sidecar, action)) as events:
            for event in events:
                progress.show(event)
    except KeyboardInterrupt:
        click.echo(
            f"crewai-sidecar: interrupted; the Action goes on: crewai-sidecar events {action.action_id} --follow",
            err=True,
        )
        raise SystemExit(INTERRUPTED) from None
    finally:
        progress.close()
    view = sidecar.status(action.action_id)  # the whole output; an event may carry less of it
    if view.status is not Status.COMPLETED:
        click.echo(f"crewai-sidecar: {ending_line(view)}", err=True)
        raise SystemExit(FAILED)
    if not as_json:
        click.echo(output_text(view.output or {}))


def _to_the_ending(sidecar: Sidecar, action: Action) -> Generator[Event, None, None]:
    """Give out the Action's events to the last, across connections that break off.

    The start is sent once. If its answer is lost, the record tells whether the Action was admitted.
    """
    cursor = 0
    try:
        with contextlib.closing(sidecar.stream(action)) as events:
            for event in events:
                cursor = event.sequence + 1
                yield event
        return
    except Unreachable as lost:
        if not lost.may_have_arrived:
            raise
        click.echo(f"crewai-sidecar: {one_line(lost)}; going on from event {cursor}", err=True)
    try:
        yield from sidecar.follow(action.action_id, cursor)
    except Refused as refused:
        if refused.code != "action_unknown":
            raise
        raise Refused(
            refused.status,
            refused.code,
            f"the Action was not admitted; to send it again, add --action-id {action.action_id} "
            f"--key {action.idempotency_key}",
            refused.problem,
        ) from refused


def ending_line(view: RecordView) -> str:
    """Say in one line how a record ended that is not completed, and what that leaves to do."""
    why = " ".join(one_line(part) for part in (view.cause, view.error_type) if part and part != view.status)
    line = f"Action {view.action_id} {view.status}" + (f" ({why})" if why else "")
    if view.uncertain_outcome:
        line += "; uncertain_outcome: true"
    if view.to_be_reconciled:
        line += "; find out what happened at the provider before anything is done again"
    return line


def _read_input(text: str) -> dict[str, Any]:
    try:
        if text == "@-":
            raw = sys.stdin.buffer.read()
        else:
            raw = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode("utf-8", "surrogateescape")
        value = jsontext.decode(raw)
    except OSError as error:
        raise click.BadParameter(f"{text[1:]}: {error.strerror}", param_hint="--input") from error
    except jsontext.InvalidJson as error:
        raise click.BadParameter(str(error), param_hint="--input") from error
    if not isinstance(value, dict):
        raise click.BadParameter("the input must be a JSON object", param_hint="--input")
    return value
