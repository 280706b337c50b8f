"""Starts that are refused: exit code 78, one line with path or variable, fact and remedy; files untouched."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.sidecar import Sidecar, until

Make = Callable[..., Sidecar]

EX_CONFIG = 78


def refusal(sidecar: Sidecar, *words: str) -> str:
    """The one line of a refusal, which has all the words."""
    code, text = sidecar.refused()
    assert code == EX_CONFIG, text
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == 1, text
    for word in words:
        assert word in lines[0], (word, lines[0])
    return lines[0]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PORT", "tcp://10.0.0.1:8090", ["AIP_CREWAI_PORT", "Kubernetes", "enableServiceLinks"]),
        ("PORT", "70000", ["AIP_CREWAI_PORT"]),
        ("PORT", "http", ["AIP_CREWAI_PORT"]),
        ("REGISTRY", "", ["AIP_CREWAI_REGISTRY", "required"]),
        ("REGISTRY", "no_colon", ["AIP_CREWAI_REGISTRY", "module:attribute"]),
        ("ALLOWED_OPERATIONS", "run,sing", ["AIP_CREWAI_ALLOWED_OPERATIONS", "sing"]),
        ("ALLOWED_OPERATIONS", "status", ["AIP_CREWAI_ALLOWED_OPERATIONS", "status"]),
        ("MAX_CONCURRENCY", "0", ["AIP_CREWAI_MAX_CONCURRENCY"]),
        ("MAX_CONCURRENCY", "1025", ["AIP_CREWAI_MAX_CONCURRENCY"]),
        ("MAX_RETAINED_RUNS", "3", ["AIP_CREWAI_MAX_RETAINED_RUNS", "AIP_CREWAI_MAX_CONCURRENCY"]),
        ("MAX_EVENTS_PER_RUN", "1", ["AIP_CREWAI_MAX_EVENTS_PER_RUN"]),
        ("MAX_EVENT_BYTES", "1023", ["AIP_CREWAI_MAX_EVENT_BYTES"]),
        ("MAX_STATE_BYTES", "1", ["AIP_CREWAI_MAX_STATE_BYTES"]),
        ("STREAM_CHECKPOINT_EVENTS", "10001", ["AIP_CREWAI_STREAM_CHECKPOINT_EVENTS"]),
        ("BEARER_TOKEN", "", ["AIP_CREWAI_BEARER_TOKEN_FILE", "required"]),
        ("BEARER_TOKEN", "tök", ["AIP_CREWAI_BEARER_TOKEN"]),
        ("BEARER_TOKEN_FILE", "/nowhere/token", ["AIP_CREWAI_BEARER_TOKEN"]),
        ("STATE_FILE", "", ["AIP_CREWAI_STATE_FILE", "required"]),
        ("TRAINING_DIR", "", ["AIP_CREWAI_TRAINING_DIR", "train"]),
        ("ALLOW_EPHEMERAL", "yes", ["AIP_CREWAI_ALLOW_EPHEMERAL"]),
        ("HOST", "256.1.1.1", ["AIP_CREWAI_HOST"]),
        ("MANAGEMENT_HOST", "no.such.host.invalid", ["AIP_CREWAI_MANAGEMENT_HOST"]),
        ("LOG_LEVEL", "loud", ["AIP_CREWAI_LOG_LEVEL", "debug, info, warning or error"]),
        ("TRAINING_DIR", "/proc/training", ["AIP_CREWAI_TRAINING_DIR"]),
        ("TRAINING_DIR", "/tmp", ["AIP_CREWAI_TRAINING_DIR", "only its owner"]),
        ("RUN_DIR", "/no/such/directory", ["AIP_CREWAI_RUN_DIR", "/no/such/directory"]),
    ],
)
def test_a_wrong_setting_is_named(make_sidecar: Make, name: str, value: str, words: list[str]) -> None:
    """And nothing was written."""
    sidecar = make_sidecar(**{name: value})
    refusal(sidecar, *words)
    assert not sidecar.state_file.exists()


def said(sidecar: Sidecar, words: str) -> None:
    """Wait until the log has some words."""
    until(lambda: words in sidecar.errors(), 5, words)


def test_what_is_set_up_in_a_way_that_can_hardly_be_meant_is_said(make_sidecar: Make) -> None:
    """A misspelt setting, and a crew without effects that the registry does not have: a warning each, not a refusal."""
    sidecar = make_sidecar(max_concurency="3", effect_free_crews="nobody")
    sidecar.start()
    for word in ("AIP_CREWAI_MAX_CONCURENCY is not a setting", "nobody"):
        said(sidecar, word)


@pytest.mark.parametrize("mode", ["ALLOW_EPHEMERAL", "ALLOW_UNAUTHENTICATED"])
def test_a_development_mode_is_refused_beyond_loopback(make_sidecar: Make, mode: str) -> None:
    """A host name never counts as loopback."""
    for host in ("0.0.0.0", "::"):
        refusal(make_sidecar(host, **{mode: "1", "HOST": host}), f"AIP_CREWAI_{mode}", "loopback")


@pytest.mark.parametrize(
    ("registry", "words"),
    [
        ("no_such_module_here:crews", ["no_such_module_here"]),
        ("duck_crews:missing", ["missing"]),
        ("bad_registry:not_a_mapping", ["mapping"]),
        ("bad_registry:raises", ["RuntimeError"]),
        ("bad_registry:empty_id", ["id"]),
        ("broken_registry:crews", ["ZeroDivisionError"]),
        ("exiting_registry:crews", ["SystemExit"]),
    ],
)
def test_a_registry_that_does_not_load_is_one_clear_line(make_sidecar: Make, registry: str, words: list[str]) -> None:
    """It names AIP_CREWAI_REGISTRY and what went wrong."""
    refusal(make_sidecar(registry=registry), "AIP_CREWAI_REGISTRY", *words)


def test_a_port_in_use_is_a_sentence(make_sidecar: Make) -> None:
    """Not an exit from inside a server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refusal(make_sidecar(port=str(taken.getsockname()[1])), "AIP_CREWAI_PORT", "in use")


def test_a_second_process_on_the_same_journal_is_refused_and_the_first_notices_nothing(make_sidecar: Make) -> None:
    """It opens no port and writes nothing."""
    first = make_sidecar().start()
    action = first.begin("crew", {"mark": "running", "seconds": 2})
    first.wait_for_effect("running")
    before = first.state_file.read_bytes()
    second = make_sidecar("two", state_file=str(first.state_file))
    refusal(second, str(first.state_file), "another process")
    assert first.state_file.read_bytes() == before
    assert first.ended(action)["status"] == "completed"


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Names, modes, owners and contents of a directory, its lock aside."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.name.endswith((".lock", ".workers")):
            continue
        stat = path.lstat()
        found[str(path)] = (stat.st_mode, stat.st_uid, path.read_bytes() if path.is_file() else b"")
    return found


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"[]", []),
        (b'[{"action_id":"a","crew_id":"c","input_hash":"h","status":"running"}]', []),
        (b"{}\n", []),
        (b"not json at all\n", []),
        (b"\x00" * 4096, []),
    ],
)
def test_a_journal_that_cannot_be_read_is_refused_and_left_as_it_is(
    make_sidecar: Make, content: bytes, words: list[str]
) -> None:
    """Never start empty over it: every repeat would be paid twice."""
    sidecar = make_sidecar()
    sidecar.state_file.parent.mkdir(mode=0o700)
    sidecar.state_file.write_bytes(content)
    sidecar.state_file.chmod(0o600)
    before = snapshot(sidecar.state_file.parent)
    refusal(sidecar, str(sidecar.state_file), *words)
    assert snapshot(sidecar.state_file.parent) == before


def test_a_journal_cut_or_rotten_is_refused_and_left_as_it_is(make_sidecar: Make) -> None:
    """At a line boundary, in a line, and one flipped bit."""
    sidecar = make_sidecar().start()
    sidecar.submit("crew")
    sidecar.stop()
    whole = sidecar.state_file.read_bytes()
    lines = whole.splitlines(keepends=True)
    middle = len(whole) // 2
    for content in (
        b"".join(lines[:-1]),
        whole[:middle],
        whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        whole + b"\x00" * 10,
        b"".join([lines[0], lines[1], *lines[1:]]),
    ):
        sidecar.state_file.write_bytes(content)
        refusal(sidecar, str(sidecar.state_file))
        assert sidecar.state_file.read_bytes() == content
    sidecar.state_file.write_bytes(whole)
    sidecar.start()


def test_a_lost_journal_is_noticed_and_only_an_explicit_word_accepts_it(make_sidecar: Make) -> None:
    """First start and lost journal look alike but for the id in the lock."""
    import subprocess
    import sys

    sidecar = make_sidecar().start()
    sidecar.submit("crew", {"mark": "m"}, action_id="act_1")
    sidecar.stop()
    sidecar.state_file.unlink()
    refusal(sidecar, str(sidecar.state_file), "lost", "accept-loss")
    assert not sidecar.state_file.exists()
    command = [sys.executable, "-m", "crewai_sidecar", "journal", "accept-loss", "--yes", str(sidecar.state_file)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    sidecar.start()
    assert sidecar.request("GET", "/jobs/act_1").status_code == 404


def test_a_bound_below_what_the_journal_has_names_the_variable_and_its_least_value(make_sidecar: Make) -> None:
    """Written under one bound, it is read under the same (W3)."""
    sidecar = make_sidecar().start()
    for number in range(6):
        sidecar.submit("streaming", {"chunks": 3, "pause": 0.05, "text": "z" * 1500}, action_id=f"act_{number}")
    sidecar.stop()
    before = sidecar.state_file.read_bytes()
    for name, value, least in (
        ("MAX_RETAINED_RUNS", "5", "6"),
        ("MAX_EVENTS_PER_RUN", "2", ""),
        ("MAX_EVENT_BYTES", "1024", ""),
    ):
        changed = dict(sidecar.settings)
        sidecar.settings |= {f"AIP_CREWAI_{name}": value, "AIP_CREWAI_MAX_CONCURRENCY": "1"}
        refusal(sidecar, f"AIP_CREWAI_{name}", "at least", least)
        sidecar.settings = changed
        assert sidecar.state_file.read_bytes() == before
    sidecar.start()


@pytest.mark.parametrize(
    "kind", ["parent_0770", "parent_0777", "parent_2770", "journal_0640", "journal_0604", "journal_0660"]
)
def test_modes_wider_than_the_rules_are_refused_and_left_as_they_are(make_sidecar: Make, kind: str) -> None:
    """serve repairs nothing; the line says what to do."""
    sidecar = make_sidecar().start()
    sidecar.submit("crew")
    sidecar.stop()
    what, mode = kind.split("_")
    path = sidecar.state_file.parent if what == "parent" else sidecar.state_file
    path.chmod(int(mode, 8))
    before = snapshot(sidecar.state_file.parent)
    refusal(sidecar, str(path))
    assert snapshot(sidecar.state_file.parent) == before
    assert path.stat().st_mode & 0o7777 == int(mode, 8)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o2700])
def test_a_directory_that_nobody_else_can_write_is_accepted(make_sidecar: Make, mode: int) -> None:
    """setgid comes by inheritance under a volume with an fsGroup."""
    sidecar = make_sidecar()
    sidecar.state_file.parent.mkdir()
    sidecar.state_file.parent.chmod(mode)
    sidecar.start()
    assert sidecar.submit("crew").status_code == 200


@pytest.mark.parametrize("what", ["directory", "journal", "lock"])
def test_a_symlink_in_place_of_a_path_is_refused(make_sidecar: Make, what: str) -> None:
    """Never followed, never replaced."""
    sidecar = make_sidecar()
    elsewhere = sidecar.directory / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    state = sidecar.state_file.parent
    match what:
        case "directory":
            state.symlink_to(elsewhere)
            path = state
        case "journal":
            state.mkdir(mode=0o700)
            (elsewhere / "target").write_text("")
            path = sidecar.state_file
            path.symlink_to(elsewhere / "target")
        case _:
            state.mkdir(mode=0o700)
            (elsewhere / "target").write_text("")
            path = state / "runs.json.lock"
            path.symlink_to(elsewhere / "target")
    refusal(sidecar, str(path))
    assert path.is_symlink()
    assert all(found.stat().st_size == 0 for found in elsewhere.iterdir())


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_something_else_in_place_of_the_journal_is_refused(make_sidecar: Make, kind: str) -> None:
    """And the start does not hang on it."""
    sidecar = make_sidecar()
    sidecar.state_file.parent.mkdir(mode=0o700)
    if kind == "directory":
        sidecar.state_file.mkdir()
    else:
        os.mkfifo(sidecar.state_file, 0o600)
    refusal(sidecar, str(sidecar.state_file))


def test_leftover_temporary_files_are_removed_and_nothing_else(make_sidecar: Make) -> None:
    """Only our own pattern, never followed."""
    sidecar = make_sidecar().start()
    sidecar.submit("crew", {"mark": "m"}, action_id="act_1")
    sidecar.kill()
    state = sidecar.state_file.parent
    other = sidecar.directory / "precious"
    other.write_text("kept")
    for number in range(50):
        (state / f".runs.json.{number:08x}.tmp").write_text("junk")
    (state / "notes.txt").write_text("kept")
    (state / ".runs.json.feedbeef.tmp").symlink_to(other)
    sidecar.start()
    assert sidecar.record("act_1")["status"] == "completed"
    sidecar.stop()
    assert {path.name for path in state.iterdir()} >= {"runs.json", "notes.txt"}
    assert not list(state.glob(".runs.json.*"))
    assert other.read_text() == "kept"
