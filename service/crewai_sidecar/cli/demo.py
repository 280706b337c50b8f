"""`demo`: a real crew behind the fence, and what is left of it after a SIGKILL."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable

import click

from crewai_sidecar.cli.exits import FAILED, as_exit_code
from crewai_sidecar.cli.progress import Progress, output_text, record_lines
from crewai_sidecar.cli.stage import NotStarted, Stage, ends_like_ctrl_c
from crewai_sidecar.connector import Action, Event, RecordView, Sidecar
from crewai_sidecar.model import Status

__all__ = ["demo"]

DECIDING_FIELDS = ("status", "cause", "provider_started", "uncertain_outcome", "to_be_reconciled")
"""What a caller decides by after a crash."""

LEAST_CRASH_PACE = 0.02
"""Seconds between words below which a run might end before it is killed."""


NUMBERS = "(one number for each event; a sentence takes many)"


@click.command()
@click.option("--crash", is_flag=True, help="Kill the service half-way, start it again, and see what it knows.")
@click.option(
    "--slow",
    type=click.FloatRange(0, 10),
    default=0.04,
    show_default=True,
    help="Seconds between two words of the model.",
)
@click.option("--topic", default="the tides", show_default=True, help="What the crew writes about.")
@click.option("--keep", is_flag=True, help="Keep the directory with journal and log.")
def demo(crash: bool, slow: float, topic: str, keep: bool) -> None:
    """Run a two-agent crew on a sidecar of its own and watch it.

    No network and no account is needed: a scripted model answers. With OPENAI_API_KEY set the same crew uses a real one
    (OPENAI_MODEL_NAME, default gpt-4o-mini), which costs money.
    """
    ends_like_ctrl_c()
    action = Action(
        crew_id="demo",
        action_id=f"act_{uuid.uuid4().hex}",
        idempotency_key=str(uuid.uuid4()),
        input={"topic": topic, "slow": max(slow, LEAST_CRASH_PACE) if crash else slow},
    )
    with as_exit_code(), Stage(keep=keep) as stage:
        if keep:
            click.echo(f"Everything of this demo is in {stage.directory}")
        try:
            holds = _crash(stage, action) if crash else _run(stage, action)
        except NotStarted as error:
            click.echo(f"crewai-sidecar: {error}", err=True)
            holds = False
    raise SystemExit(0 if holds else FAILED)


def _run(stage: Stage, action: Action) -> bool:
    _start(stage, "Starting a sidecar with one crew, called demo: a researcher with a tool, and a writer.")
    _say(f"Sending the Action {action.action_id}. Its events, as they happen:")
    click.echo(NUMBERS)
    with stage.connect() as sidecar:
        _watch(sidecar, action)
        view = sidecar.status(action.action_id)
        _say("The record that the sidecar keeps of it:")
        record_lines(view, click.echo)
        if view.status is not Status.COMPLETED:
            _hint()
            return False
        _say("Sending exactly the same Action again, as a caller does that has lost the answer:")
        used = stage.effects_count()
        begin = time.monotonic()
        output = sidecar.submit(action)
        took = time.monotonic() - begin
        click.echo(output_text(output))
        click.echo(f"The answer came from the record, in {took:.3f} s.")
        again = stage.effects_count()
    click.echo("")
    click.echo(f"The tool was used {used} time(s) before the repeat and {again} after it: {_verdict(used, again)}")
    click.echo("Next: make demo-crash (or: crewai-sidecar demo --crash) kills the service half-way.")
    return used == again


def _crash(stage: Stage, action: Action) -> bool:
    _start(stage, "Starting a sidecar with one crew, called demo: a researcher with a tool, and a writer.")
    _say(f"Sending the Action {action.action_id}. As soon as its tool is at work, the service is killed:")
    click.echo(NUMBERS)
    with stage.connect() as sidecar:
        killed_in = _watch(sidecar, action, until=lambda event: event.event == "tool_started")
    if killed_in is None or not stage.wait_for_an_effect():
        click.echo(
            "crewai-sidecar: the crew did not use its tool this time, so there was no moment to kill it", err=True
        )
        _hint()
        return False
    pid = stage.pid
    stage.kill()
    used = stage.effects_count()
    _say(f"kill -9 {pid}: the service is gone, in the middle of a run whose tool had already done something.")
    _start(stage, "Starting the service again, on the same journal.")
    with stage.connect() as sidecar:
        view = sidecar.status(action.action_id)
        _say("What it knows of the Action:")
        record_lines(view, click.echo, DECIDING_FIELDS)
        _say("Sending exactly the same Action again. The answer comes from the journal:")
        _watch(sidecar, action)
        after = sidecar.status(action.action_id)
    again = stage.effects_count()
    click.echo("")
    click.echo(f"The tool was used {used} time(s) before the repeat and {again} after it: {_verdict(used, again)}")
    _explain(view)
    return used == again and view.uncertain_outcome and after.answer == view.answer


def _watch(sidecar: Sidecar, action: Action, until: Callable[[Event], bool] | None = None) -> Event | None:
    """Start the Action and show its events to the ending, or to the first that `until` is true of."""
    progress = Progress(sys.stdout, as_json=False)
    try:
        # Closed here and not by the garbage collector, in which a Ctrl-C would be lost.
        with contextlib.closing(sidecar.stream(action)) as events:
            for event in events:
                progress.show(event)
                if until is not None and until(event):
                    return event
    finally:
        progress.close()
    return None


def _start(stage: Stage, words: str) -> None:
    _say(words)
    stage.start()
    model = "a real model, by OPENAI_API_KEY" if os.environ.get("OPENAI_API_KEY") else "scripted, offline"
    click.echo(f"Ready at {stage.url}, process {stage.pid}, model: {model}")


def _hint() -> None:
    """Name the way around a real model that does not answer as the demo needs it."""
    if os.environ.get("OPENAI_API_KEY"):
        click.echo(
            "crewai-sidecar: the real model may be the cause; without it: env -u OPENAI_API_KEY make demo", err=True
        )


def _say(words: str) -> None:
    click.echo("")
    click.secho(f"== {words}", bold=True)


def _verdict(before: int, after: int) -> str:
    return "nothing ran again." if before == after else "SOMETHING RAN AGAIN."


def _explain(view: RecordView) -> None:
    uncertain = str(view.uncertain_outcome).lower()
    click.echo(
        f"""
What happened here: before the crew was allowed to start, the Action was written to
disk. The restarted service found it there as running, cannot know how far it had
come, and says so instead of guessing: status {view.status}, uncertain_outcome: {uncertain}.
It does not run the Action again by itself, nor when the same Action is sent again: the
tool may already have sent the mail or booked the flight. Somebody has to find out at
the provider what happened, and then decide. New work is a new Action ID."""
    )
