"""`journal accept-loss`: the one command that lets a journal be forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from crewai_sidecar.cli import main
from crewai_sidecar.errors import JournalRefused
from crewai_sidecar.journal import open_journal


def open_and_close(path: Path) -> str:
    opened = open_journal(path, max_bytes=1 << 20, settled=lambda *_: None)
    assert opened.journal.start([]) is None
    opened.journal.close()
    return opened.journal.identity


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a journal was that has been opened once."""
    path = tmp_path / "state" / "runs.json"
    path.parent.mkdir(mode=0o700)
    open_and_close(path)
    return path


def test_an_accepted_loss_lets_an_empty_journal_begin(path: Path) -> None:
    """Without the command the start is refused and names it; after it a new journal begins under a new id."""
    before = open_and_close(path)
    path.unlink()
    with pytest.raises(JournalRefused, match="accept-loss"):
        open_and_close(path)
    result = CliRunner().invoke(main, ["journal", "accept-loss", str(path), "--yes"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert open_and_close(path) != before


def test_a_journal_that_is_there_is_not_lost(path: Path) -> None:
    """One line and code 78, and the journal is as it was."""
    before = path.read_bytes()
    result = CliRunner().invoke(main, ["journal", "accept-loss", str(path), "--yes"])
    assert result.exit_code == 78
    assert result.stderr.startswith(f"crewai-sidecar: {path}: ")
    assert path.read_bytes() == before


def test_a_journal_that_never_was_is_not_lost(tmp_path: Path) -> None:
    """A mistyped path is refused with code 78, and neither a lock file nor a directory is made there."""
    result = CliRunner().invoke(main, ["journal", "accept-loss", str(tmp_path / "state" / "runs.json"), "--yes"])
    assert result.exit_code == 78
    assert "no journal was ever here" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_loss_is_not_accepted_without_a_yes(path: Path) -> None:
    """The question says what is given up."""
    path.unlink()
    result = CliRunner().invoke(main, ["journal", "accept-loss", str(path)], input="n\n")
    assert result.exit_code == 1
    assert "would run again" in result.stdout
    with pytest.raises(JournalRefused):
        open_and_close(path)
