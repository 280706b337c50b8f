"""The journal's place on disk: the seed's protocol, step by step, and the file that is kept ready for the next commit.

A commit writes a temporary file of mode 0600 in the journal's directory, flushes and fsyncs it, renames it over the
journal, and fsyncs the directory. The steps carry the row names of FORMAT.md's tables.
"""

from __future__ import annotations

import errno
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from crewai_sidecar.errors import JournalBroken, JournalFull, NotStored
from crewai_sidecar.journal._checkpoint import Header, read_generation
from crewai_sidecar.journal._files import Files

__all__ = ["Place", "refusal"]

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_HEADER_BYTES = 4096
"""More than a header line ever has: what is read to see whose checkpoint is on disk."""


@dataclass(slots=True)
class _Spare:
    """The next temporary file: it exists before it is needed, so that its blocks are ours when the disk is full."""

    path: Path
    descriptor: int
    allocated: int = 0


class Place:
    """Where the journal is, and what was put there last: `header`, in the file of device and inode `on_disk`.

    Used by one thread at a time.
    """

    def __init__(self, path: Path, files: Files, header: Header, on_disk: tuple[int, int] | None) -> None:
        self.header = header
        self._path = path
        self._files = files
        self._on_disk = on_disk
        self._spare: _Spare | None = None
        self._estranged: JournalBroken | None = None

    def check_ours(self) -> None:
        """Refuse, from now on, to replace a file that is not the one that was written last.

        Raises JournalBroken.
        """
        if self._estranged is not None:
            raise self._estranged
        found = _found(self._path)
        expected = None if self._on_disk is None else (*self._on_disk, self.header.journal_id, self.header.generation)
        if found != expected:
            self._estranged = JournalBroken(
                f"{self._path} is not the file that was written last: somebody else writes here. It is left alone."
            )
            raise self._estranged

    def replace(self, text: bytes, header: Header, *, keep: int | None) -> None:
        """Put a text in the journal's place. With `keep`, only if the file after it is sure to have that many bytes.

        Raises OSError. When only the last step fails, the new file is in place all the same.
        """
        spare, self._spare = self._spare or self._create(), None
        following: _Spare | None = None
        try:
            if keep is not None:
                following = self._create()
                self._allocate(following, keep)
            self._allocate(spare, len(text))
            self._files.write(spare.descriptor, spare.path, text, 0)
            self._files.truncate(spare.descriptor, spare.path, len(text))
        except OSError as error:  # row: no space, or a failed write
            self._discard(following)
            self._keep_or_discard(spare, error)
            raise
        try:
            self._files.sync(spare.descriptor, spare.path)
            found = os.fstat(spare.descriptor)
            self._files.rename(spare.path, self._path)
        except OSError:  # rows: a failed fsync; a failed rename. Neither is tried again on this file.
            self._discard(following)
            self._discard(spare)
            raise
        self._on_disk, self.header, self._spare = (found.st_dev, found.st_ino), header, following
        self._close(spare)
        self._files.sync_directory(self._path.parent)  # row: a failed directory fsync. The next commit writes it again.

    # -- temporary files ------------------------------------------------------------------------------------------

    def _create(self) -> _Spare:
        """Make an empty temporary file. Raises OSError."""
        path = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}.tmp")
        return _Spare(path, self._files.create(path))

    def _allocate(self, spare: _Spare, size: int) -> None:
        """Make `size` bytes of a file ours on the disk, as far as the file system can promise that. Raises OSError."""
        if size > spare.allocated and self._files.allocate(spare.descriptor, spare.path, size):
            spare.allocated = size

    def provide(self, size: int) -> None:
        """Have the next temporary file ready. Best effort: an admission asks for it again and is refused without it."""
        try:
            if self._spare is None:
                self._spare = self._create()
            self._allocate(self._spare, size)
        except OSError:
            return

    def _keep_or_discard(self, spare: _Spare, error: OSError) -> None:
        """Keep a file that only was too small: its blocks are the room for endings. The next commit overwrites it."""
        if error.errno in _NO_SPACE and self._spare is None:
            self._spare = spare
        else:
            self._discard(spare)

    def _discard(self, spare: _Spare | None) -> None:
        if spare is None:
            return
        self._close(spare)
        try:
            self._files.remove(spare.path)
        except OSError:
            return  # a start removes leftovers; nothing depends on it

    def _close(self, spare: _Spare) -> None:
        try:
            self._files.close(spare.descriptor, spare.path)
        except OSError:
            return  # it is fsynced or thrown away already

    def close(self) -> None:
        """Remove the spare file."""
        self._discard(self._spare)
        self._spare = None


def _found(path: Path) -> tuple[int, int, str, int] | None:
    """Device, inode, journal id and generation of what is in the journal's place; None where there is nothing.

    Raises JournalBroken for what cannot be looked at.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalBroken(f"{path} cannot be opened: {error.strerror}.") from None
    try:
        found = os.fstat(descriptor)
        if found.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)  # somebody of our own uid has widened it; a start would refuse it
        named = read_generation(os.pread(descriptor, _HEADER_BYTES, 0))
    except OSError as error:
        raise JournalBroken(f"{path} cannot be read: {error.strerror}.") from None
    finally:
        os.close(descriptor)
    return (found.st_dev, found.st_ino, *(named or ("", 0)))


def refusal(error: OSError) -> NotStored:
    """The one place where an error of the disk becomes one of ours."""
    if error.errno in _NO_SPACE:
        return JournalFull("There is no space left for the journal.")
    return JournalBroken(f"The journal could not be written: {error.strerror or error}.")
