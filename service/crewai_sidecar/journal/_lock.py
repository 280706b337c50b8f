"""The companion lock: one process for one journal, and the memory of which journal was here (the seed)."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from crewai_sidecar.errors import JournalLocked, JournalRefused
from crewai_sidecar.journal._files import Files

__all__ = ["Lock", "lock_path"]

_ID_LENGTH = 32


def lock_path(journal: Path) -> Path:
    """The lock file of a journal: its path with `.lock` appended."""
    return journal.with_name(journal.name + ".lock")


class Lock:
    """An exclusive flock that is held until `release`, with the journal's id as the file's content."""

    def __init__(self, journal: Path, files: Files, *, make: bool = True) -> None:
        """Take the lock without waiting. With `make`, its file is made where there is none.

        Raises JournalLocked when another process has it, JournalRefused for a path or a file system that cannot be
        used for it.
        """
        self._journal = journal
        self._files = files
        self.path = lock_path(journal)
        try:
            descriptor = files.open(self.path, os.O_RDWR | (os.O_CREAT if make else 0))
        except OSError as error:
            fact = "it is a symlink" if error.errno == errno.ELOOP else f"it cannot be opened ({error.strerror})"
            raise JournalRefused(self.path, fact, "It must be a regular file of this user") from None
        self._descriptor: int | None = descriptor
        try:
            self._check(descriptor)
            self._take(descriptor)
            text = files.read(descriptor, self.path, _ID_LENGTH + 2, 0)
        except OSError as error:
            self.release()
            raise JournalRefused(
                self.path, f"the file system fails ({error.strerror})", "Find out what is wrong with the disk"
            ) from None
        except BaseException:
            self.release()
            raise
        self.journal_id = _journal_id(text)
        """The id that the lock remembers; any other content counts as none."""

    def remember(self, journal_id: str) -> None:
        """Write the id down, after the journal's first durable checkpoint. Raises OSError."""
        if self.journal_id != journal_id and self._descriptor is not None:
            self._files.write(self._descriptor, self.path, journal_id.encode("ascii") + b"\n", 0)
            self._files.truncate(self._descriptor, self.path, _ID_LENGTH + 1)
            self._files.sync(self._descriptor, self.path)
            self.journal_id = journal_id

    def forget(self) -> None:
        """Drop the id: the loss of its journal is accepted. Raises OSError."""
        if self._descriptor is not None:
            self._files.truncate(self._descriptor, self.path, 0)
            self._files.sync(self._descriptor, self.path)
            self.journal_id = None

    def release(self) -> None:
        """Give the lock back, once. The file stays."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._files.close(descriptor, self.path)

    def _check(self, descriptor: int) -> None:
        found = self._files.status(descriptor, self.path)
        if not stat.S_ISREG(found.st_mode):
            raise JournalRefused(self.path, "it is not a regular file", "It must be a regular file, or absent")
        if found.st_uid != os.geteuid():
            raise JournalRefused(
                self.path,
                f"it belongs to user {found.st_uid} and this process is user {os.geteuid()}",
                "Run as its owner",
            )

    def _take(self, descriptor: int) -> None:
        try:
            self._files.lock(descriptor, self.path)
        except OSError as error:
            raise self._refusal(error) from None
        self._force_mode(descriptor)
        held = self._files.status(descriptor, self.path)
        try:
            there = self._files.stat(self.path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise JournalRefused(self.path, "it was replaced while it was taken", "Find out who else writes here")

    def _force_mode(self, descriptor: int) -> None:
        """Set 0600 and read it back: a file system without modes takes a chmod and does nothing, or refuses it."""
        try:
            self._files.chmod(descriptor, self.path, 0o600)
            mode = stat.S_IMODE(self._files.status(descriptor, self.path).st_mode)
            fact = f"its mode was set to 0600 and reads back {mode:04o}" if mode & 0o077 else None
        except OSError as error:
            fact = f"its mode cannot be set to 0600 ({error.strerror})"
        if fact is not None:
            raise JournalRefused(
                self.path, fact, "Use a file system that keeps modes; this one is not fit for a journal"
            )

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


def _journal_id(text: bytes) -> str | None:
    found = text.decode("ascii", "replace").strip()
    return found if len(found) == _ID_LENGTH and set(found) <= set("0123456789abcdef") else None
