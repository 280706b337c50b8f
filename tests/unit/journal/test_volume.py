"""Whose the journal's directory and files must be, and what modes they must have."""

from __future__ import annotations

import os
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crewai_sidecar.errors import JournalRefused, VolumeRefused
from crewai_sidecar.journal import open_journal

ORDINARY = 10_001


def opens(path: Path) -> None:
    """Open and close the journal, with its first checkpoint."""
    opened = open_journal(path, max_bytes=1 << 20, settled=lambda batch: None)
    assert opened.journal.start([]) is None
    opened.journal.close()


def as_user(uid: int, act: Callable[[], None]) -> None:
    """Do something as another user, in a process of its own: root's rights make modes mean nothing."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            act()
            code = 0
        except BaseException:  # noqa: BLE001  # the exit code says it
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.fixture
def volume() -> Iterator[Path]:
    """A directory that every user can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        yield root


def test_what_is_made_is_private_whatever_the_umask(volume: Path) -> None:
    """0700 and 0600."""
    before = os.umask(0)
    try:
        opens(volume / "state" / "runs.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((volume / "state").stat().st_mode) == 0o700
    for path in (volume / "state").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_the_last_component_of_the_directory_is_made(volume: Path) -> None:
    """A path that is wrong higher up is a mistake, not a wish."""
    with pytest.raises(VolumeRefused, match="is not there"):
        opens(volume / "missing" / "state" / "runs.json")
    assert not (volume / "missing").exists()


def test_the_modes_of_the_lock_are_forced(volume: Path) -> None:
    """The seed's rule for it; the journal's are refused instead."""
    path = volume / "state" / "runs.json"
    opens(path)
    path.with_name("runs.json.lock").chmod(0o666)
    opens(path)
    assert stat.S_IMODE(path.with_name("runs.json.lock").stat().st_mode) == 0o600


class TestOtherUsers:
    """Files of one user, a process of another."""

    pytestmark = pytest.mark.root

    def test_a_world_writable_root_gets_a_private_directory(self, volume: Path) -> None:
        """The default volume of a local cluster: 0777 of root, and the process is nobody special."""
        volume.chmod(0o777)
        as_user(ORDINARY, lambda: opens(volume / "state" / "runs.json"))
        found = (volume / "state").stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (ORDINARY, 0o700)

    def test_a_root_that_the_user_cannot_write_is_refused_with_owner_and_mode(self, volume: Path) -> None:
        """root:root 0755."""

        def act() -> None:
            with pytest.raises(VolumeRefused, match=r"10001.*0755 of user 0"):
                opens(volume / "state" / "runs.json")

        as_user(ORDINARY, act)
        assert list(volume.iterdir()) == []

    def test_a_directory_of_another_user_is_refused(self, volume: Path) -> None:
        """In a world-writable root anybody could have made it."""
        volume.chmod(0o777)
        (volume / "state").mkdir(mode=0o755)

        def act() -> None:
            with pytest.raises(VolumeRefused, match="belongs to user 0"):
                opens(volume / "state" / "runs.json")

        as_user(ORDINARY, act)

    @pytest.mark.parametrize("name", ["runs.json", "runs.json.lock"])
    def test_a_file_of_another_user_is_refused(self, volume: Path, name: str) -> None:
        """Even for root, who could read it: whose fence it is must be plain."""
        path = volume / "state" / "runs.json"
        opens(path)
        os.chown(path.with_name(name), ORDINARY, ORDINARY)
        before = path.read_bytes()
        with pytest.raises(JournalRefused, match=f"belongs to user {ORDINARY}"):
            opens(path)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("mode", [0o000, 0o200, 0o400])
    def test_a_journal_that_its_user_cannot_use_is_refused_or_used_but_never_replaced_unread(
        self, volume: Path, mode: int
    ) -> None:
        """0400 can be read, and the next checkpoint has 0600 again."""
        path = volume / "state" / "runs.json"
        volume.chmod(0o777)

        def act() -> None:
            opens(path)
            before = path.read_bytes()
            path.chmod(mode)
            if mode == 0o400:
                opens(path)
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                return
            with pytest.raises(JournalRefused, match="cannot be opened"):
                opens(path)
            path.chmod(0o600)
            assert path.read_bytes() == before

        as_user(ORDINARY, act)
