"""The client commands against a double of the service: what they print where, and what they end with."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from crewai_sidecar.cli import main
from tests.doubles.fake_service import FakeService


class Run:
    """Runs one command against the double."""

    def __init__(self, service: FakeService) -> None:
        self.service = service

    def __call__(self, *arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, [*arguments, "--url", self.service.url], input=stdin)

    def admit(self, action_id: str, *, failed: bool = False) -> None:
        if failed:
            data = {"status": "failed", "cause": "restart", "uncertain_outcome": True, "to_be_reconciled": True}
            self.service.script = (("started", {"operation": "run"}), ("failed", data))
        self.service.admit({"action_id": action_id, "crew_id": "demo", "operation": "run"})


@pytest.fixture
def run(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("CREWAI_SIDECAR_URL", "AIP_CREWAI_BEARER_TOKEN", "AIP_CREWAI_BEARER_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Run(service)


def test_submit_shows_events_on_stderr_and_the_output_on_stdout(run: Run) -> None:
    """A pipe after submit gets the output and nothing else."""
    result = run("submit", "demo", "--action-id", "act_1", "--key", "k")
    assert result.exit_code == 0
    assert result.stdout == "the output\n"
    assert result.stderr.splitlines() == [
        "Action act_1  key k",
        "   0  started  run",
        "   1  tool starts  almanac",
        "   2  Writer says:",
        "      two words",
        "   3  COMPLETED",
    ]


def test_submit_makes_an_id_and_a_key_of_its_own(run: Run) -> None:
    """Two submits without options are two Actions, and each says who it is before its first event."""
    for _ in range(2):
        assert run("submit", "demo").exit_code == 0
    bodies = [body for _, path, _, body in run.service.requests if path == "/jobs/stream"]
    keys = [headers["idempotency-key"] for _, path, headers, _ in run.service.requests if path == "/jobs/stream"]
    assert len({body["action_id"] for body in bodies}) == 2
    assert all(len(body["action_id"]) == len("act_") + 32 for body in bodies)
    assert len(set(keys)) == 2


def test_submit_sends_what_its_options_say(run: Run, tmp_path: Path) -> None:
    """Operation, timeout and an input from a file, a number's form kept."""
    file = tmp_path / "input.json"
    file.write_text('{"inputs": [{"n": 1.0}]}')
    run("submit", "demo", "--operation", "batch_run", "--timeout-ms", "5000", "--input", f"@{file}")
    assert run.service.requests[0][3] | {"action_id": ""} == {
        "action_id": "",
        "crew_id": "demo",
        "operation": "batch_run",
        "timeout_ms": 5000,
        "input": {"inputs": [{"n": 1.0}]},
    }


def test_submit_reads_its_input_from_stdin(run: Run) -> None:
    """@- is standard input."""
    run("submit", "demo", "--input", "@-", stdin='{"a": 1}')
    assert run.service.requests[0][3]["input"] == {"a": 1}


@pytest.mark.parametrize("text", ["{", "[]", '{"a": NaN}', '{"a": 1, "a": 2}', "@/does/not/exist"])
def test_an_input_that_is_no_object_is_wrong_usage(run: Run, text: str) -> None:
    """What the service would refuse is refused before it is sent."""
    result = run("submit", "demo", "--input", text)
    assert result.exit_code == 2
    assert "--input" in result.stderr
    assert run.service.requests == []


def test_json_is_one_event_a_line(run: Run) -> None:
    """A machine reads every event, the ending with the output last, and nothing else."""
    result = run("submit", "demo", "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["sequence"] for event in events] == [0, 1, 2, 3]
    assert events[-1]["data"]["raw"] == "the output"


def test_a_failed_action_is_one_line_and_code_1(run: Run) -> None:
    """The line says cause and class, and that somebody has to find out what happened."""
    run.service.script = (
        ("started", {}),
        ("failed", {"cause": "exception", "error_type": "ValueError", "to_be_reconciled": True}),
    )
    result = run("submit", "demo", "--action-id", "act_1")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == (
        "crewai-sidecar: Action act_1 failed (exception ValueError); "
        "find out what happened at the provider before anything is done again"
    )


def test_submit_goes_on_over_a_lost_connection(run: Run) -> None:
    """Each event is shown once, and the start is sent once."""
    run.service.cuts = [2]
    result = run("submit", "demo", "--json")
    assert [json.loads(line)["sequence"] for line in result.stdout.splitlines()] == [0, 1, 2, 3]
    assert [path for _, path, _, _ in run.service.requests].count("/jobs/stream") == 1
    assert "going on from event 2" in result.stderr


def test_a_start_whose_answer_was_lost_is_looked_up(run: Run) -> None:
    """The Action was admitted before the connection was lost: its record is followed."""
    run.service.lose_start = "after"
    result = run("submit", "demo")
    assert (result.exit_code, result.stdout) == (0, "the output\n")


def test_a_start_that_never_arrived_says_how_to_send_it_again(run: Run) -> None:
    """The command never repeats a start by itself, and the line has what a repeat needs."""
    run.service.lose_start = "before"
    result = run("submit", "demo", "--action-id", "act_1", "--key", "k-1")
    assert result.exit_code == 1
    assert "not admitted; to send it again, add --action-id act_1 --key k-1" in result.stderr


def test_detach_returns_at_the_admission(run: Run) -> None:
    """The Action ID is the whole output, ready for `events`."""
    result = run("submit", "demo", "--detach", "--action-id", "act_1")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "act_1\n", "")


def test_events_shows_a_record_from_a_cursor(run: Run) -> None:
    """With and without --follow it is the same events."""
    run.admit("act_1")
    pages = [run("events", "act_1", "--cursor", "2", *more) for more in ([], ["--follow"])]
    assert [page.stdout for page in pages] == ["   2  Writer says:\n      two words\n   3  COMPLETED\n"] * 2


def test_show_prints_every_field_and_the_output(run: Run) -> None:
    """What an operator decides by is there."""
    run.admit("act_1", failed=True)
    result = run("show", "act_1")
    assert {"status": "failed", "cause": "restart", "uncertain_outcome": "true"}.items() <= dict(
        line.split(None, 1) for line in result.stdout.splitlines()
    ).items()
    assert json.loads(run("show", "act_1", "--json").stdout) == run.service.records["act_1"]["view"]


def test_list_reads_every_page_and_passes_its_filters_on(run: Run) -> None:
    """One line a record; the filters are the service's."""
    for number in range(102):
        run.admit(f"act_{number:03}")
    result = run("list", "--status", "completed", "--crew", "demo", "--to-be-reconciled")
    assert len(result.stdout.splitlines()) == 102
    assert run.service.requests[0][1] == "/jobs?status=completed&crew_id=demo&to_be_reconciled=true&limit=100"


def test_list_marks_what_is_uncertain(run: Run) -> None:
    """An operator finds the records to look into by eye and by grep."""
    run.admit("act_1", failed=True)
    line = run("list").stdout
    assert line.split() == ["act_1", "demo", "run", "failed", "restart", "uncertain_outcome", "to_be_reconciled"]


def test_cancel_tells_whether_it_was_the_cancel_that_ended_the_action(run: Run) -> None:
    """0 where the record is cancelled, 1 where it had ended in another way."""
    run.admit("act_1")
    result = run("cancel", "act_1", "--crew", "demo", "--reason", "wrong order")
    assert (result.exit_code, result.stdout) == (1, "Action act_1 completed\n")
    run.service.script = (("started", {}), ("cancelled", {}))
    run.admit("act_2")
    assert run("cancel", "act_2", "--crew", "demo").exit_code == 0


def test_archive_has_to_be_confirmed(run: Run) -> None:
    """Without --yes nothing is sent."""
    run.admit("act_1")
    assert run("archive", "act_1").exit_code == 2
    assert run.service.requests == []
    assert run("archive", "act_1", "--yes").stdout == "archived act_1\n"


def test_drain_says_what_it_did(run: Run) -> None:
    """One word for a person, an object for a machine."""
    assert run("drain").stdout == "draining\n"
    assert json.loads(run("drain", "--json").stdout) == {"draining": True}


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [(503, "draining", 69), (503, "queue_full", 69), (409, "request_conflict", 1), (401, "unauthorized", 1)],
)
def test_a_refusal_is_one_line_with_its_code(run: Run, status: int, code: str, exit_code: int) -> None:
    """69 says: later, or elsewhere. 1 says: not this request."""
    run.service.refusals = [(status, {"code": code, "detail": "Because\x1b[31m."})]
    result = run("submit", "demo", "--detach")
    assert result.exit_code == exit_code
    assert result.stderr == f"crewai-sidecar: Because\\x1b[31m. ({status} {code})\n"


def test_nobody_there_is_code_69() -> None:
    """One line that names the address."""
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(main, ["list", "--url", url])
    assert result.exit_code == 69
    assert result.stderr.startswith(f"crewai-sidecar: no connection to {url}")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("url", ["http://example.test", "nonsense"])
def test_an_address_that_must_not_get_a_token_is_wrong_usage(url: str) -> None:
    """Code 2, before anything is sent."""
    assert CliRunner().invoke(main, ["list", "--url", url]).exit_code == 2


def test_the_token_comes_from_file_or_environment(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file wins."""
    monkeypatch.setenv("AIP_CREWAI_BEARER_TOKEN", "from the environment")
    run("list")
    file = tmp_path / "token"
    file.write_text("from the file\n")
    monkeypatch.setenv("AIP_CREWAI_BEARER_TOKEN_FILE", str(file))
    run("list")
    assert [headers["authorization"] for _, _, headers, _ in run.service.requests] == [
        "Bearer from the environment",
        "Bearer from the file",
    ]


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff"], ids=["missing", "empty", "blank", "not UTF-8"])
def test_a_file_without_a_token_is_wrong_usage(run: Run, tmp_path: Path, content: bytes | None) -> None:
    """One line that names the file, code 2, and nothing is sent."""
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    result = run("list", "--token-file", str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"crewai-sidecar: no token in {file}: ")
    assert len(result.stderr.splitlines()) == 1
    assert run.service.requests == []
