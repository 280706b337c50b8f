"""How events and records are shown to a person, on a terminal and in a pipe alike.

Every event is a line with its sequence, except that the text of consecutive chunks of one speaker flows on: word by
word on a terminal, a line at a time in a pipe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import click

from crewai_sidecar.cli.exits import one_line
from crewai_sidecar.connector import Event, RecordView

__all__ = ["Progress", "json_line", "output_text", "record_lines"]

SPOKEN = {
    "started": "started",
    "task_started": "task starts",
    "task_completed": "task is done",
    "tool_started": "tool starts",
    "tool_finished": "tool is done",
    "model_called": "model answered",
    "input_completed": "input is done",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
}
"""Words for the event names; a name that is not here is shown as it is."""

SPOKEN_OF_A_FAILURE = {"tool_finished": "tool failed", "model_called": "model call failed"}
"""Words for the events whose `failed` is true."""

DETAILS = ("operation", "task_name", "tool_name", "model", "agent_role", "index", "cause", "error_type")
"""Simple fields of an event's data that are worth a place in its line, in this order."""

SEPARATOR = "    "


def json_line(value: Any) -> str:
    """Write one value as a line for machines."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


class Progress:
    """Writes events as they come. Close it at the end, so that a text which is under way gets its line end."""

    def __init__(self, file: TextIO, *, as_json: bool) -> None:
        self._file = file
        self._as_json = as_json
        self._flows = file.isatty()
        self._speaker: str | None = None
        self._line = ""

    def show(self, event: Event) -> None:
        """Show one event."""
        if self._as_json:
            self._write(json_line({"event": event.event, "sequence": event.sequence, "data": event.data}) + "\n")
        elif event.event == "chunk":
            self._chunk(event)
        else:
            self.close()
            self._write(f"{event.sequence:>4}  {_sentence(event)}\n")

    def close(self) -> None:
        """End the text that is under way."""
        if self._speaker is not None:
            self._write((self._line if not self._flows else "") + "\n")
        self._speaker, self._line = None, ""

    def _chunk(self, event: Event) -> None:
        content = event.data.get("content")
        if not isinstance(content, str):
            return
        speaker = one_line(event.data.get("agent_role") or "text")
        if speaker != self._speaker:
            self.close()
            self._speaker = speaker
            self._write(f"{event.sequence:>4}  {speaker} says:\n{SEPARATOR}  ")
        first, *more = content.replace("\r\n", "\n").split("\n")
        self._say(first)
        for text in more:
            self._write((self._line if not self._flows else "") + f"\n{SEPARATOR}  ")
            self._line = ""
            self._say(text)

    def _say(self, text: str) -> None:
        text = one_line(text)
        if self._flows:
            self._write(text)
        else:
            self._line += text

    def _write(self, text: str) -> None:
        click.echo(text, file=self._file, nl=False)


def _sentence(event: Event) -> str:
    spoken = SPOKEN_OF_A_FAILURE if event.data.get("failed") is True and event.event in SPOKEN_OF_A_FAILURE else SPOKEN
    words = [spoken.get(event.event, one_line(event.event))]
    words += [one_line(value) for name in DETAILS if isinstance(value := event.data.get(name), str | int)]
    if event.data.get("uncertain_outcome") is True:
        words.append("uncertain_outcome: true")
    return "  ".join(word for word in words if word)


def record_lines(view: RecordView, echo: Callable[[str], None], first: Sequence[str] = ()) -> None:
    """Show a record: each field of the answer in a line, the output last, as text where it is one.

    The fields in `first` come before all others.
    """
    plain = {name: view.answer[name] for name in first if name in view.answer}
    plain |= {name: value for name, value in view.answer.items() if name != "output"}
    width = max(map(len, plain))
    for name, value in plain.items():
        if value is None or value == [] or value == {}:
            continue
        echo(f"{name:<{width}}  {one_line(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    if view.output is not None:
        echo("")
        echo(output_text(view.output))


def output_text(output: dict[str, Any]) -> str:
    """The text of an output where it has one, the whole as JSON where not."""
    raw = output.get("raw")
    if isinstance(raw, str):
        return "\n".join(one_line(line) for line in raw.splitlines())
    return json.dumps(output, ensure_ascii=False, indent=2)
