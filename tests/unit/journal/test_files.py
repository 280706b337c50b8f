"""One suite for every implementation of the file protocol: what the journal relies on, and how the double fails."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crewai_sidecar.journal import Files, RealFiles
from tests.doubles.fault_files import OPERATIONS, FaultFiles, SmallFiles

MAKERS: dict[str, Callable[[Path], Files]] = {
    "real": lambda _: RealFiles(),
    "double": lambda _: FaultFiles(),
    "small": SmallFiles,
}


@pytest.fixture(params=MAKERS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return MAKERS[request.param](tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_a_created_file_is_new_and_private(files: Files, path: Path) -> None:
    """Whatever the umask; a file or a symlink that is there is not taken for it."""
    before = os.umask(0)
    try:
        descriptor = files.create(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(files.status(descriptor, path).st_mode) == 0o600
    assert not os.get_inheritable(descriptor)
    files.close(descriptor, path)
    with pytest.raises(FileExistsError):
        files.create(path)
    link = path.with_name("link")
    link.symlink_to(path.with_name("nowhere"))
    with pytest.raises(FileExistsError):
        files.create(link)


def test_an_opened_path_is_neither_followed_nor_waited_for_nor_inherited(files: Files, path: Path) -> None:
    """A symlink, a FIFO without a writer."""
    path.write_text("x")
    link, fifo = path.with_name("link"), path.with_name("fifo")
    link.symlink_to(path)
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="symbolic") as raised:
        files.open(link, os.O_RDONLY)
    assert raised.value.errno == errno.ELOOP
    for one in (path, fifo):
        descriptor = files.open(one, os.O_RDONLY)
        assert not os.get_inheritable(descriptor)
        files.close(descriptor, one)
    made = path.with_name("made")
    files.close(files.open(made, os.O_RDWR | os.O_CREAT), made)
    assert stat.S_IMODE(files.stat(made).st_mode) == 0o600


def test_what_is_written_is_read_at_its_place(files: Files, path: Path) -> None:
    """Up to the end of the file, and no further."""
    descriptor = files.create(path)
    files.write(descriptor, path, b"0123456789", 0)
    files.write(descriptor, path, b"ab", 4)
    assert files.read(descriptor, path, 4, 3) == b"3ab6"
    assert files.read(descriptor, path, 100, 8) == b"89"
    assert files.read(descriptor, path, 100, 10) == b""
    files.truncate(descriptor, path, 5)
    files.sync(descriptor, path)
    files.close(descriptor, path)
    assert path.read_bytes() == b"0123a"


def test_allocated_bytes_are_in_the_file(files: Files, path: Path) -> None:
    """A later write within them needs no more blocks."""
    descriptor = files.create(path)
    assert files.allocate(descriptor, path, 20_000)
    assert files.status(descriptor, path).st_size == 20_000
    blocks = files.status(descriptor, path).st_blocks
    files.write(descriptor, path, b"x" * 20_000, 0)
    files.sync(descriptor, path)
    assert files.status(descriptor, path).st_blocks == blocks
    files.close(descriptor, path)


def test_a_renamed_file_takes_the_place_of_the_other(files: Files, path: Path) -> None:
    """And its name is durable after that."""
    other = path.with_name("other")
    path.write_text("old")
    other.write_text("new")
    files.rename(other, path)
    files.sync_directory(path.parent)
    assert path.read_text() == "new"
    assert files.names(path.parent) == ["file"]


def test_a_lock_excludes_another_process_until_it_is_closed(files: Files, path: Path) -> None:
    """It is refused at once."""
    descriptor = files.create(path)
    files.lock(descriptor, path)
    attempt = [sys.executable, "-c", f"import fcntl; fcntl.flock(open({str(path)!r}), fcntl.LOCK_EX | fcntl.LOCK_NB)"]
    assert b"BlockingIOError" in subprocess.run(attempt, capture_output=True, check=False).stderr
    files.close(descriptor, path)
    assert subprocess.run(attempt, capture_output=True, check=False).returncode == 0


def test_a_symlink_is_looked_at_and_removed_itself(files: Files, path: Path) -> None:
    """Its target stays."""
    path.write_text("kept")
    link = path.with_name("link")
    link.symlink_to(path)
    assert stat.S_ISLNK(files.stat(link).st_mode)
    files.remove(link)
    assert files.names(path.parent) == ["file"]


def test_a_made_directory_is_private_and_modes_are_set(files: Files, path: Path) -> None:
    """0700, below a parent that is there."""
    files.make_directory(path)
    assert stat.S_IMODE(files.stat(path).st_mode) == 0o700
    with pytest.raises(FileNotFoundError):
        files.make_directory(path / "a" / "b")
    descriptor = files.open(path, os.O_RDONLY | os.O_DIRECTORY)
    files.chmod(descriptor, path, 0o750)
    files.close(descriptor, path)
    assert stat.S_IMODE(files.stat(path).st_mode) == 0o750


def test_the_double_fails_by_kind_by_name_and_by_how_often_it_was_called(tmp_path: Path) -> None:
    """And works again when it is healed."""
    files = FaultFiles()
    files.fail("stat", errno.EIO, name="b", skip=1, times=2)
    failed = []
    for name in ("a", "b", "b", "a", "b", "b"):
        (tmp_path / name).touch()
        try:
            files.stat(tmp_path / name)
            failed.append(0)
        except OSError as error:
            failed.append(error.errno or 0)
    assert failed == [0, 0, errno.EIO, 0, errno.EIO, 0]
    files.fail("stat")
    files.heal()
    files.stat(tmp_path / "b")
    assert files.calls == ["stat"] * 7


def test_the_double_knows_every_operation() -> None:
    """So that none can be left out of the tables."""
    named = {name for name in vars(Files) if not name.startswith("_")}
    assert set(OPERATIONS) == named
    for maker in (RealFiles, FaultFiles):
        assert named <= set(dir(maker))


def test_a_small_file_system_is_full_at_its_capacity(tmp_path: Path) -> None:
    """What is allocated may be written, one block more may not."""
    files = SmallFiles(tmp_path)
    path = tmp_path / "file"
    descriptor = files.create(path)
    files.allocate(descriptor, path, 10_000)
    files.fill()
    files.write(descriptor, path, b"x" * 12_288, 0)
    with pytest.raises(OSError, match="No space"):
        files.write(descriptor, path, b"x", 12_288)
    files.close(descriptor, path)
