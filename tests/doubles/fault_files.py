"""File systems that fail: at the operation that a test names, for ever after one, or when they are full."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crewai_sidecar.journal import Files, RealFiles

__all__ = ["OPERATIONS", "Crash", "FaultFiles", "SmallFiles"]

OPERATIONS = (
    "stat",
    "status",
    "names",
    "make_directory",
    "open",
    "create",
    "lock",
    "chmod",
    "read",
    "allocate",
    "write",
    "truncate",
    "sync",
    "close",
    "rename",
    "sync_directory",
    "remove",
)
"""Every operation of the protocol; a test holds the list against it."""


class Crash(BaseException):
    """Raised in the place of a process that ends: nothing after it happens, not even clean-up."""


@dataclass
class _Failure:
    number: int
    name: str
    skip: int
    times: int


class FaultFiles:
    """Real files, of which an operation fails by kind, by the name it is for, and by how often it was called before."""

    def __init__(self, real: Files | None = None) -> None:
        self.real: Files = real or RealFiles()
        self.calls: list[str] = []
        self.crash_after: int | None = None
        self.dead = False
        self.without_effect: set[str] = set()
        self._failures: dict[str, _Failure] = {}

    def fail(self, kind: str, number: int = errno.EIO, *, name: str = "", skip: int = 0, times: int = 1 << 30) -> None:
        """Let a kind fail with an error number: for paths that end in `name`, after `skip` calls, `times` times."""
        self._failures[kind] = _Failure(number, name, skip, times)

    def heal(self) -> None:
        """Let everything work again."""
        self._failures.clear()
        self.without_effect.clear()

    def _enter(self, kind: str, path: Path) -> None:
        if self.dead:
            raise Crash
        self.calls.append(kind)
        failure = self._failures.get(kind)
        if failure is None or not path.name.endswith(failure.name):
            return
        if failure.skip:
            failure.skip -= 1
        elif failure.times:
            failure.times -= 1
            raise OSError(failure.number, os.strerror(failure.number), str(path))

    def _leave(self) -> None:
        if self.crash_after is not None and len(self.calls) >= self.crash_after:
            self.dead = True
            raise Crash

    def _do(self, kind: str, path: Path, call: Callable[..., Any], *arguments: Any) -> Any:
        self._enter(kind, path)
        result = None if kind in self.without_effect else call(*arguments)
        self._leave()
        return result

    def stat(self, path: Path) -> os.stat_result:
        found: os.stat_result = self._do("stat", path, self.real.stat, path)
        return found

    def status(self, descriptor: int, path: Path) -> os.stat_result:
        found: os.stat_result = self._do("status", path, self.real.status, descriptor, path)
        return found

    def names(self, path: Path) -> list[str]:
        return list(self._do("names", path, self.real.names, path))

    def make_directory(self, path: Path) -> None:
        self._do("make_directory", path, self.real.make_directory, path)

    def open(self, path: Path, flags: int) -> int:
        return int(self._do("open", path, self.real.open, path, flags))

    def create(self, path: Path) -> int:
        return int(self._do("create", path, self.real.create, path))

    def lock(self, descriptor: int, path: Path) -> None:
        self._do("lock", path, self.real.lock, descriptor, path)

    def chmod(self, descriptor: int, path: Path, mode: int) -> None:
        self._do("chmod", path, self.real.chmod, descriptor, path, mode)

    def read(self, descriptor: int, path: Path, size: int, offset: int) -> bytes:
        return bytes(self._do("read", path, self.real.read, descriptor, path, size, offset))

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        return bool(self._do("allocate", path, self.real.allocate, descriptor, path, size))

    def write(self, descriptor: int, path: Path, data: bytes, offset: int) -> None:
        self._do("write", path, self.real.write, descriptor, path, data, offset)

    def truncate(self, descriptor: int, path: Path, size: int) -> None:
        self._do("truncate", path, self.real.truncate, descriptor, path, size)

    def sync(self, descriptor: int, path: Path) -> None:
        self._do("sync", path, self.real.sync, descriptor, path)

    def close(self, descriptor: int, path: Path) -> None:
        self._do("close", path, self.real.close, descriptor, path)

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename", source, self.real.rename, source, target)

    def sync_directory(self, path: Path) -> None:
        self._do("sync_directory", path, self.real.sync_directory, path)

    def remove(self, path: Path) -> None:
        self._do("remove", path, self.real.remove, path)


class SmallFiles(RealFiles):
    """A file system of so many bytes, in blocks; without limit until `capacity` is set."""

    BLOCK = 4096

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.capacity: int | None = None

    @property
    def used(self) -> int:
        """Bytes that the files of the directory take."""
        return sum(self._blocks(path.lstat().st_size) for path in self._directory.iterdir())

    def fill(self) -> None:
        """Leave nothing free: what is used now is all there is."""
        self.capacity = self.used

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        self._take(descriptor, size)
        return super().allocate(descriptor, path, size)

    def write(self, descriptor: int, path: Path, data: bytes, offset: int) -> None:
        self._take(descriptor, offset + len(data))
        super().write(descriptor, path, data, offset)

    def _take(self, descriptor: int, size: int) -> None:
        more = self._blocks(size) - self._blocks(os.fstat(descriptor).st_size)
        if self.capacity is not None and more > 0 and self.used + more > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _blocks(self, size: int) -> int:
        return -(-size // self.BLOCK) * self.BLOCK
