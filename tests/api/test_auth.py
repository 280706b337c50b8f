"""Where the token comes from: the variable, a file, a mounted Secret and its rotation."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from crewai_sidecar.api.auth import GRACE_SECONDS, MAX_TOKEN_BYTES, Token, read_token
from crewai_sidecar.clock import Clock
from crewai_sidecar.errors import SettingRefused
from crewai_sidecar.settings import Settings


class Hands:
    """A clock that goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def utc(self) -> datetime:
        raise NotImplementedError


def token(clock: Clock | None = None, **values: Any) -> Token:
    return read_token(Settings(registry="a:b", **values), clock)


def lets_in(one: Token, text: str) -> bool:
    return one.accepts([b"Bearer " + text.encode()])


def test_the_variable_s_token_is_trimmed() -> None:
    """As a file's is."""
    assert lets_in(token(bearer_token=" t0ken\n"), "t0ken")


def test_no_token_lets_everybody_in() -> None:
    """Loopback development; settings.py refuses it elsewhere."""
    assert token().accepts([])
    assert lets_in(token(), "whatever")


@pytest.mark.parametrize("text", ["", " \n", "two words", "tök", "a\x00b", "a\x7f", "x" * (MAX_TOKEN_BYTES + 1)])
def test_a_text_that_no_header_could_carry_stops_the_start(tmp_path: Path, text: str) -> None:
    """The line names the variable and not the token."""
    file = tmp_path / "token"
    file.write_text(text)
    for values, variable in (
        ({"bearer_token": text}, "AIP_CREWAI_BEARER_TOKEN"),
        ({"bearer_token_file": file}, "AIP_CREWAI_BEARER_TOKEN_FILE"),
    ):
        with pytest.raises(SettingRefused) as refused:
            token(**values)
        assert refused.value.variable == variable
        assert not text.strip() or text not in str(refused.value)


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o444, 0o644])
def test_a_file_that_others_can_read_is_accepted(tmp_path: Path, mode: int) -> None:
    """As Kubernetes mounts a Secret."""
    file = tmp_path / "token"
    file.write_text("t\n")
    file.chmod(mode)
    assert lets_in(token(bearer_token_file=file), "t")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o660])
def test_a_file_that_others_can_write_is_refused_and_left_as_it_is(tmp_path: Path, mode: int) -> None:
    """Whoever can write it decides who gets in."""
    file = tmp_path / "token"
    file.write_text("t")
    file.chmod(mode)
    with pytest.raises(SettingRefused, match=r"BEARER_TOKEN_FILE.*token can be written.*chmod go-w"):
        token(bearer_token_file=file)
    assert file.stat().st_mode & 0o777 == mode


def test_what_is_no_regular_file_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    """A directory, a FIFO, nothing."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "missing"):
        with pytest.raises(SettingRefused, match="AIP_CREWAI_BEARER_TOKEN_FILE"):
            token(bearer_token_file=path)


def mounted(directory: Path, text: str, version: str) -> Path:
    """Put a token where Kubernetes would: file -> ..data/file, ..data -> a dated directory; swapped by a rename."""
    dated = directory / f"..{version}"
    dated.mkdir()
    (dated / "token").write_text(text)
    (directory / "..new").symlink_to(dated.name)
    (directory / "..new").rename(directory / "..data")
    link = directory / "token"
    if not link.is_symlink():
        link.symlink_to("..data/token")
    return link


def test_a_rotated_secret_is_read_again_and_the_former_token_stays_valid_for_a_while(tmp_path: Path) -> None:
    """Both sides of a rotation need not be changed at the same moment."""
    clock = Hands()
    one = token(clock, bearer_token_file=mounted(tmp_path, "first", "1"))
    mounted(tmp_path, "second", "2")
    assert not lets_in(one, "second")
    clock.now += 1.0
    assert lets_in(one, "second")
    assert lets_in(one, "first")
    mounted(tmp_path, "third", "3")
    clock.now += 10.0
    assert [lets_in(one, text) for text in ("first", "second", "third")] == [True, True, True]
    clock.now += GRACE_SECONDS - 10.0
    assert [lets_in(one, text) for text in ("first", "second", "third")] == [False, True, True]
    clock.now += 10.0
    assert [lets_in(one, text) for text in ("first", "second", "third")] == [False, False, True]


@pytest.mark.parametrize("fault", ["missing", "empty", "writable"])
def test_a_file_that_cannot_be_used_any_more_keeps_the_known_token(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log, not one a second; a mended file counts."""
    clock = Hands()
    file = tmp_path / "token"
    file.write_text("first")
    one = token(clock, bearer_token_file=file)
    file.unlink()
    if fault != "missing":
        file.write_text("" if fault == "empty" else "other")
        file.chmod(0o666 if fault == "writable" else 0o600)
    for _ in range(5):
        clock.now += 1.0
        assert lets_in(one, "first")
    assert len(caplog.records) == 1
    assert "first" not in caplog.text
    file.unlink(missing_ok=True)
    file.write_text("second")
    clock.now += 1.0
    assert lets_in(one, "second")
