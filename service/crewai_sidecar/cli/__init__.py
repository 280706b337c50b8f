"""The command `crewai-sidecar`: the service, a client for people and scripts, and the demo.

Exit codes: 0 done; 1 the Action did not complete, or the service refused the request; 2 wrong usage; 69 the service
cannot be reached or takes no work; 78 the service must not start as it is set up; 130 `submit` was interrupted while it
watched an Action.
"""

from __future__ import annotations

import click

from crewai_sidecar import __version__
from crewai_sidecar.cli import act, demo, journal, read, serve, submit

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="crewai-sidecar")
def main() -> None:
    """Run CrewAI crews behind a durable admission fence."""


for command in (
    serve.serve,
    submit.submit,
    read.events,
    read.show,
    read.list_jobs,
    act.cancel,
    act.archive,
    act.drain,
    journal.journal,
    demo.demo,
):
    main.add_command(command)
