"""Every file operation of the journal, behind one small protocol, so that each can fail on demand in a test."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol

__all__ = ["Files", "RealFiles"]

_ALWAYS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""A symlink is never followed, a FIFO never waited for, and no descriptor inherited."""

_NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class Files(Protocol):
    """The file system as the journal uses it. Each method raises OSError; `path` says whose descriptor it is."""

    def stat(self, path: Path) -> os.stat_result:
        """Look at a path; at a symlink itself, never its target."""

    def status(self, descriptor: int, path: Path) -> os.stat_result:
        """Look at an open file."""

    def names(self, path: Path) -> list[str]:
        """List a directory."""

    def make_directory(self, path: Path) -> None:
        """Make a directory of mode 0700, below one that is there."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file, never through a symlink and without waiting; one that is made so has mode 0600."""

    def create(self, path: Path) -> int:
        """Make a new file of mode 0600 and open it for reading and writing."""

    def lock(self, descriptor: int, path: Path) -> None:
        """Take an exclusive flock without waiting."""

    def chmod(self, descriptor: int, path: Path, mode: int) -> None:
        """Set the mode of an open file or directory."""

    def read(self, descriptor: int, path: Path, size: int, offset: int) -> bytes:
        """Read `size` bytes, or fewer where the file ends."""

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        """Make the first `size` bytes of a file its own on the disk; False where the file system cannot."""

    def write(self, descriptor: int, path: Path, data: bytes, offset: int) -> None:
        """Write all of `data` at an offset."""

    def truncate(self, descriptor: int, path: Path, size: int) -> None:
        """Cut a file to a size."""

    def sync(self, descriptor: int, path: Path) -> None:
        """Make a file's content durable."""

    def close(self, descriptor: int, path: Path) -> None:
        """Close a descriptor."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` by `source`, atomically."""

    def sync_directory(self, path: Path) -> None:
        """Make a directory's names durable."""

    def remove(self, path: Path) -> None:
        """Remove a file; a symlink itself, never its target."""


class RealFiles:
    """The operating system's calls."""

    def stat(self, path: Path) -> os.stat_result:
        return path.lstat()

    def status(self, descriptor: int, path: Path) -> os.stat_result:
        return os.fstat(descriptor)

    def names(self, path: Path) -> list[str]:
        return os.listdir(path)  # noqa: PTH208  # names, and nothing made of them

    def make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700)

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | _ALWAYS, 0o600)

    def create(self, path: Path) -> int:
        return self.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def lock(self, descriptor: int, path: Path) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def chmod(self, descriptor: int, path: Path, mode: int) -> None:
        os.fchmod(descriptor, mode)

    def read(self, descriptor: int, path: Path, size: int, offset: int) -> bytes:
        pieces: list[bytes] = []
        while size and (piece := os.pread(descriptor, size, offset)):
            pieces.append(piece)
            size, offset = size - len(piece), offset + len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno in _NOT_SUPPORTED:
                return False
            raise
        return True

    def write(self, descriptor: int, path: Path, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(descriptor, view, offset)
            offset += done
            view = view[done:]

    def truncate(self, descriptor: int, path: Path, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int, path: Path) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int, path: Path) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)  # noqa: PTH104  # os.rename is what the protocol is named for

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink()
