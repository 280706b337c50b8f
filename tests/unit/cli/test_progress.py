"""How events look to a person."""

from __future__ import annotations

import io

import pytest

from crewai_sidecar.cli.progress import Progress, record_lines
from crewai_sidecar.connector import Event, RecordView
from crewai_sidecar.model import Status


class Terminal(io.StringIO):
    """A text file that says it is a terminal, and remembers what was written at once."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def chunk(sequence: int, content: str, role: str = "Writer") -> Event:
    return Event("chunk", sequence, {"content": content, "agent_role": role})


def shown(file: io.StringIO, *events: Event) -> str:
    progress = Progress(file, as_json=False)
    for event in events:
        progress.show(event)
    progress.close()
    return file.getvalue()


STORY = (
    chunk(0, "one "),
    chunk(1, "two\nthree"),
    chunk(2, " other", "Researcher"),
    Event("tool_started", 3, {"tool_name": "almanac"}),
    chunk(4, "end"),
    Event("completed", 5, {"raw": "x"}),
)
TEXT = """\
   0  Writer says:
      one two
      three
   2  Researcher says:
       other
   3  tool starts  almanac
   4  Writer says:
      end
   5  COMPLETED
"""


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_a_terminal_and_a_pipe_show_the_same_text(make: type[io.StringIO]) -> None:
    """Text of one speaker flows on, everything else is a line of its own."""
    assert shown(make(), *STORY) == TEXT


def test_a_terminal_shows_each_chunk_as_it_comes() -> None:
    """A person sees words, not paragraphs."""
    terminal = Terminal()
    progress = Progress(terminal, as_json=False)
    progress.show(chunk(0, "one"))
    progress.show(chunk(1, " two"))
    assert terminal.writes[-2:] == ["one", " two"]


def test_a_pipe_gets_the_text_of_a_line_at_once() -> None:
    """What reads the pipe by lines is not woken for every word."""
    pipe = io.StringIO()
    progress = Progress(pipe, as_json=False)
    progress.show(chunk(0, "one"))
    before = pipe.getvalue()
    progress.show(chunk(1, " two\n"))
    assert before == "   0  Writer says:\n      "
    assert pipe.getvalue() == "   0  Writer says:\n      one two\n      "


def test_what_a_model_writes_cannot_steer_the_terminal() -> None:
    """Escape sequences are shown, not obeyed."""
    text = shown(Terminal(), chunk(0, "a\x1b[2Jb\rc\u202e"), Event("tool_started", 1, {"tool_name": "x\x1b]0;y\x07"}))
    assert "\x1b" not in text
    assert "a\\x1b[2Jb\\rc\\u202e" in text


def test_an_event_that_this_client_does_not_know_is_shown() -> None:
    """An older client is no reason for a gap in the story."""
    assert shown(io.StringIO(), Event("brand_new", 7, {"index": 1})) == "   7  brand_new  1\n"


def test_a_tool_that_failed_is_told_from_one_that_did_not() -> None:
    """A failed tool ends no run, so its event is the place where a person sees it."""
    event = Event("tool_finished", 3, {"tool_name": "almanac", "failed": True})
    assert shown(io.StringIO(), event) == "   3  tool failed  almanac\n"


def test_a_model_call_that_failed_does_not_say_that_the_model_answered() -> None:
    """A wrong key or a model that is not there is seen where it happens."""
    event = Event("model_called", 2, {"model": "gpt-4o-mini", "agent_role": "Writer", "failed": True})
    assert shown(io.StringIO(), event) == "   2  model call failed  gpt-4o-mini  Writer\n"


def test_the_fields_that_a_reader_decides_by_can_come_first() -> None:
    """Each field is shown once, and a field that the record has not is not made up."""
    answer = {"action_id": "act_1", "status": "failed", "uncertain_outcome": True}
    view = RecordView(
        action_id="act_1", crew_id="demo", operation="run", status=Status.FAILED, event_count=2, answer=answer
    )
    lines: list[str] = []
    record_lines(view, lines.append, ("uncertain_outcome", "cause"))
    assert [line.split()[0] for line in lines] == ["uncertain_outcome", "action_id", "status"]
