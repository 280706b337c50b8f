"""A file system that fails, or stops for ever, at the operation that a test names."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crewai_sidecar.journal import RealFiles

__all__ = ["OPERATIONS", "Crash", "FaultFiles"]

OPERATIONS = ("create", "allocate", "write", "truncate", "sync", "close", "rename", "sync_directory", "remove")
"""Every operation of the protocol; a test holds the list against it."""


class Crash(BaseException):
    """Raised in the place of a process that ends: nothing after it happens, not even clean-up."""


class FaultFiles:
    """Real files, of which an operation fails by kind, by path, and by how often it was called before."""

    def __init__(self) -> None:
        self.real = RealFiles()
        self.calls: list[str] = []
        self.failures: dict[str, Callable[[int, Path], int | None]] = {}
        self.crash_after: int | None = None
        self.dead = False

    def fail(self, kind: str, number: int = errno.EIO, *, times: int | None = None) -> None:
        """Let the next `times` calls of a kind fail (all of them without it) with an error number."""
        left = [times if times is not None else 1 << 30]

        def decide(_: int, __: Path) -> int | None:
            left[0] -= 1
            return number if left[0] >= 0 else None

        self.failures[kind] = decide

    def heal(self) -> None:
        """Let everything work again."""
        self.failures.clear()

    def _enter(self, kind: str, path: Path) -> None:
        if self.dead:
            raise Crash
        decide = self.failures.get(kind)
        number = decide(self.calls.count(kind), path) if decide else None
        self.calls.append(kind)
        if number is not None:
            raise OSError(number, os.strerror(number), str(path))

    def _leave(self) -> None:
        if self.crash_after is not None and len(self.calls) >= self.crash_after:
            self.dead = True
            raise Crash

    def _do(self, kind: str, path: Path, *arguments: Any) -> Any:
        self._enter(kind, path)
        result = getattr(self.real, kind)(*arguments)
        self._leave()
        return result

    def create(self, path: Path) -> int:
        return int(self._do("create", path, path))

    def allocate(self, descriptor: int, path: Path, size: int) -> bool:
        return bool(self._do("allocate", path, descriptor, path, size))

    def write(self, descriptor: int, path: Path, data: bytes, offset: int) -> None:
        self._do("write", path, descriptor, path, data, offset)

    def truncate(self, descriptor: int, path: Path, size: int) -> None:
        self._do("truncate", path, descriptor, path, size)

    def sync(self, descriptor: int, path: Path) -> None:
        self._do("sync", path, descriptor, path)

    def close(self, descriptor: int, path: Path) -> None:
        self._do("close", path, descriptor, path)

    def rename(self, source: Path, target: Path) -> None:
        self._do("rename", source, source, target)

    def sync_directory(self, path: Path) -> None:
        self._do("sync_directory", path, path)

    def remove(self, path: Path) -> None:
        self._do("remove", path, path)
