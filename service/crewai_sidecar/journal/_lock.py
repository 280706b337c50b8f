"""The companion lock: one process for one journal, and the memory of which journal was here (the seed)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from crewai_sidecar.errors import JournalLocked, JournalRefused

__all__ = ["Lock", "lock_path"]

_ID_LENGTH = 32


def lock_path(journal: Path) -> Path:
    """The lock file of a journal: its path with `.lock` appended."""
    return journal.with_name(journal.name + ".lock")


class Lock:
    """An exclusive flock that is held until `release`, with the journal's id as the file's content."""

    def __init__(self, journal: Path) -> None:
        """Take the lock without waiting.

        Raises JournalLocked when another process has it, JournalRefused for a path or a file system that cannot be
        used for it.
        """
        self._journal = journal
        self.path = lock_path(journal)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            fact = "it is a symlink" if error.errno == errno.ELOOP else f"it cannot be opened ({error.strerror})"
            raise JournalRefused(self.path, fact, "It must be a regular file of this user, or absent") from None
        try:
            self._check()
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def journal_id(self) -> str | None:
        """The id that the lock remembers; any other content counts as none."""
        text = os.pread(self._descriptor, 64, 0).decode("ascii", "replace").strip()
        return text if len(text) == _ID_LENGTH and set(text) <= set("0123456789abcdef") else None

    def remember(self, journal_id: str) -> None:
        """Write the id down, after the journal's first durable checkpoint. Raises OSError."""
        if self.journal_id != journal_id:
            os.pwrite(self._descriptor, journal_id.encode("ascii") + b"\n", 0)
            os.ftruncate(self._descriptor, _ID_LENGTH + 1)
            os.fsync(self._descriptor)

    def forget(self) -> None:
        """Drop the id: the loss of its journal is accepted."""
        os.ftruncate(self._descriptor, 0)
        os.fsync(self._descriptor)

    def release(self) -> None:
        """Give the lock back. The file stays."""
        os.close(self._descriptor)

    def _check(self) -> None:
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise JournalRefused(self.path, "it is not a regular file", "It must be a regular file, or absent")
        if found.st_uid != os.geteuid():
            raise JournalRefused(self.path, f"it belongs to user {found.st_uid}", "Run as its owner")

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise self._refusal(error) from None
        os.fchmod(self._descriptor, 0o600)
        held = os.fstat(self._descriptor)
        if held.st_mode & 0o077:
            raise JournalRefused(
                self.path,
                f"its mode was set to 0600 and reads back {stat.S_IMODE(held.st_mode):04o}",
                "Use a file system that keeps modes; this one is not fit for a journal",
            )
        try:
            there = self.path.lstat()
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise JournalRefused(self.path, "it was replaced while it was taken", "Find out who else writes here")

    def _refusal(self, error: OSError) -> JournalRefused:
        if error.errno in {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}:
            return JournalLocked(
                self._journal, "another process owns this journal", "Find and stop it; never delete the lock file"
            )
        if error.errno == errno.ENOLCK:
            return JournalRefused(
                self.path,
                "the file system has no locks left (ENOLCK)",
                "Mend its lock service; nothing is known to own it",
            )
        return JournalRefused(
            self.path, f"the file system cannot lock ({error.strerror})", "Use storage with working flock"
        )
