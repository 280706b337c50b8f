"""One checkpoint on the disk, by the seed's protocol to the letter, and the room that is kept for the next one.

A temporary file of mode 0600 in the journal's directory is written, flushed, fsynced, renamed over the journal, and the
directory is fsynced. Beside it a second file, the reserve, holds blocks for when the disk is full. FORMAT.md has the
crash table and the failure table; the steps below carry their row names.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from crewai_sidecar.errors import JournalBroken, JournalFull, NotStored
from crewai_sidecar.journal._checkpoint import Header
from crewai_sidecar.journal._files import Files

__all__ = ["Place", "Written", "refusal"]

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_BLOCK = 4096
"""What the end of a file may take beyond its size."""

_SLACK = 65_536
"""Bytes that the reserve may have beyond what is to be kept, before they are given back."""


@dataclass(frozen=True, slots=True)
class Written:
    """The checkpoint that is in the journal's place: which file, how it begins, how long it is."""

    device: int
    inode: int
    first_line: bytes
    size: int

    @classmethod
    def of(cls, found: os.stat_result, text: bytes) -> Written:
        """Describe a file by its status and its content."""
        return cls(found.st_dev, found.st_ino, text[: text.index(b"\n") + 1], len(text))


@dataclass(slots=True)
class _Temporary:
    """A file beside the journal, and how many bytes of it are surely its own on the disk."""

    path: Path
    descriptor: int
    allocated: int = 0


class Place:
    """Where the journal is, and what was put there last. Used by one thread at a time."""

    def __init__(self, path: Path, files: Files, header: Header, written: Written | None) -> None:
        """Take over the journal that was found, or, with None, the place for one."""
        self.path = path
        self.header = header
        self._written = written
        self._files = files
        self._reserve: _Temporary | None = None
        self._estranged = False

    def is_ours(self) -> bool:
        """Whether the file in the journal's place is the one that was written last. Once it is not, it never is again.

        Modes that somebody of our own uid has widened are put back: the next start would refuse them. Raises OSError.
        """
        if not self._estranged:
            self._estranged = not self._find()
        return not self._estranged

    def disown(self) -> None:
        """Write nothing any more: what is on the disk is not known."""
        self._estranged = True

    def replace(self, text: bytes, header: Header, *, keep: int, ahead: bool) -> None:
        """Put a text in the journal's place, and keep `keep` bytes in reserve for the file after it.

        With `ahead`, those bytes are taken first, and nothing is written without them. Otherwise the reserve itself
        becomes the file when there is no space for another, and is filled up afterwards as far as there is space.

        Raises OSError; after one from the last step the text is in place and may not survive a crash.
        """
        if ahead:
            self._reserve = self._reserve or self._create()
            self._allocate(self._reserve, keep)
        ours = (self._written.size if self._written else 0) + (self._reserve.allocated if self._reserve else 0)
        temporary, spent = self._temporary(len(text), spend=not ahead)
        try:
            self._files.write(temporary.descriptor, temporary.path, text, 0)
            if temporary.allocated > len(text):
                self._files.truncate(temporary.descriptor, temporary.path, len(text))
        except Exception as error:  # rows: no space; a failed write
            if spent and _no_space(error):
                self._reserve = temporary
            else:
                self._discard(temporary)
            raise
        try:
            self._files.sync(temporary.descriptor, temporary.path)
            written = Written.of(self._files.status(temporary.descriptor, temporary.path), text)
            self._files.rename(temporary.path, self.path)
        except Exception:  # rows: a failed fsync; a failed rename. Neither is tried again on this file.
            self._discard(temporary)
            raise
        self._written, self.header = written, header
        self._close(temporary)
        self._files.sync_directory(self.path.parent)  # row: a failed directory fsync. The next commit writes it again.
        self._refill(keep, ours - len(text) - _BLOCK)

    def close(self) -> None:
        """Remove the reserve."""
        self._discard(self._reserve)
        self._reserve = None

    # -- whose file it is -----------------------------------------------------------------------------------------

    def _find(self) -> bool:
        try:
            descriptor = self._files.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return self._written is None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return False
            raise
        try:
            found = self._files.status(descriptor, self.path)
            ours = self._written
            if ours is None or (found.st_dev, found.st_ino) != (ours.device, ours.inode):
                return False
            if self._files.read(descriptor, self.path, len(ours.first_line), 0) != ours.first_line:
                return False
            if found.st_mode & 0o077:
                with contextlib.suppress(OSError):  # the file that replaces it has its own mode
                    self._files.chmod(descriptor, self.path, 0o600)
        finally:
            self._files.close(descriptor, self.path)
        with contextlib.suppress(OSError):  # the next start refuses it; what is running does not stop for it
            self._mend_directory()
        return True

    def _mend_directory(self) -> None:
        directory = self.path.parent
        mode = self._files.stat(directory).st_mode
        if mode & 0o022:
            descriptor = self._files.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._files.chmod(descriptor, directory, stat.S_IMODE(mode) & ~0o022)
            finally:
                self._files.close(descriptor, directory)

    # -- temporary files ------------------------------------------------------------------------------------------

    def _create(self) -> _Temporary:
        """Make an empty temporary file. Raises OSError."""
        path = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")
        return _Temporary(path, self._files.create(path))

    def _allocate(self, file: _Temporary, size: int) -> None:
        """Make `size` bytes of a file ours on the disk, as far as the file system can promise that. Raises OSError."""
        if size > file.allocated and self._files.allocate(file.descriptor, file.path, size):
            file.allocated = size

    def _temporary(self, size: int, *, spend: bool) -> tuple[_Temporary, bool]:
        """The file for a checkpoint, with its blocks: a new one, or where there is no space, the reserve; and whether.

        Raises OSError, and the reserve is as it was.
        """
        fresh: _Temporary | None = None
        try:
            fresh = self._create()
            self._allocate(fresh, size)
            return fresh, False
        except OSError as error:
            self._discard(fresh)
            if not (spend and self._reserve and _no_space(error)):
                raise
        self._allocate(self._reserve, size)
        reserve, self._reserve = self._reserve, None
        return reserve, True

    def _refill(self, keep: int, released: int) -> None:
        """Bring the reserve to `keep` bytes, or one that was spent to those at least that were ours until now.

        Best effort: an admission asks for it again and is refused without it.
        """
        for size in (keep, min(keep, released)):
            try:
                self._reserve = self._reserve or self._create()
                if self._reserve.allocated > keep + _SLACK:
                    self._files.truncate(self._reserve.descriptor, self._reserve.path, keep)
                    self._reserve.allocated = keep
                self._allocate(self._reserve, size)
                return
            except OSError:
                continue

    def _discard(self, file: _Temporary | None) -> None:
        if file is not None:
            self._close(file)
            with contextlib.suppress(OSError):  # a start removes leftovers; nothing depends on it
                self._files.remove(file.path)

    def _close(self, file: _Temporary) -> None:
        with contextlib.suppress(OSError):  # it is fsynced or thrown away already
            self._files.close(file.descriptor, file.path)


def _no_space(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _NO_SPACE


def refusal(error: OSError | MemoryError) -> NotStored:
    """The one place where an error of the disk becomes one of ours."""
    if isinstance(error, MemoryError):
        return JournalBroken("There is no memory for a checkpoint.")
    if error.errno in _NO_SPACE:
        return JournalFull("There is no space left for the journal.")
    return JournalBroken(f"The journal could not be written: {error.strerror or error}.")
