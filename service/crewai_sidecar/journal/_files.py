"""Every file operation of the journal, behind one small protocol, so that each can fail on demand in a test."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

__all__ = ["Files", "RealFiles"]


class Files(Protocol):
    """The file system as the writer uses it. Each method raises OSError as the call of that name does."""

    def create(self, path: Path) -> int:
        """Make a new file of mode 0600 and open it for writing; its descriptor is not inherited."""

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

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
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
