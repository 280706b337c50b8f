"""The demo, as a newcomer runs it: a real service, a real crew, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crewai_sidecar.cli.stage import READY


def environment(directory: Path) -> dict[str, str]:
    """The test's environment with a place for temporary files of its own, and without an account at a provider."""
    return {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"} | {"TMPDIR": str(directory)}


def processes_of(directory: Path) -> list[str]:
    """Command lines of all processes that were started with this place for temporary files."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"TMPDIR={directory}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize("arguments", [[], ["--crash"]], ids=["demo", "demo --crash"])
def test_the_demo_shows_what_it_promises_and_leaves_nothing(arguments: list[str], tmp_path: Path) -> None:
    """It runs offline, ends by itself with code 0, and no process and no file of it stays."""
    result = subprocess.run(
        [sys.executable, "-m", "crewai_sidecar", "demo", "--slow", "0.005", "--topic", "the moon", *arguments],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert "The tool was used 1 time(s) before the repeat and 1 after it: nothing ran again." in result.stdout
    assert "almanac" in result.stdout
    if arguments:
        assert "FAILED" in result.stdout
        assert "uncertain_outcome: true" in result.stdout
        known = result.stdout.partition("What it knows of the Action:\n")[2].splitlines()[:5]
        fields = ["status", "cause", "provider_started", "uncertain_outcome", "to_be_reconciled"]
        assert [line.split()[0] for line in known] == fields
    else:
        assert "The answer came from the record, in " in result.stdout
        assert "There was a time when the moon could only be watched." in result.stdout
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def _heed_interrupts() -> None:
    """A shell starts what runs in its background with SIGINT ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run ends the service and takes the directory away, also when it is pressed again."""
    with subprocess.Popen(
        [sys.executable, "-m", "crewai_sidecar", "demo", "--slow", "1"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_heed_interrupts,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "started" in line:
                break
        demo.send_signal(number)
        for line in demo.stdout:
            if "stopping" in line:
                break
        demo.send_signal(signal.SIGINT)  # impatience
        demo.stdout.read()
    assert demo.returncode == (1 if number == signal.SIGINT else 128 + number)
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_the_ready_line_is_read_as_it_is_written() -> None:
    """Both addresses and a path with blanks."""
    ready = READY.fullmatch(
        "crewai-sidecar ready: contract http://127.0.0.1:1 management http://[::1]:2 journal /a b/c.json"
    )
    assert ready is not None
    assert ready.groupdict() == {
        "contract": "http://127.0.0.1:1",
        "management": "http://[::1]:2",
        "journal": "/a b/c.json",
    }
