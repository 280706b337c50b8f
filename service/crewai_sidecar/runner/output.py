"""What a process prints: read in chunks, counted, and logged at debug at a bounded rate.

CrewAI prints exception texts and prompts, so by default nothing of it is logged but how much there was. A flood is read
as fast as it comes, because a full pipe would stall the run; what is over the rate is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import os

__all__ = ["OutputPipe"]

RATE = 64 << 10
"""Bytes a second that are logged, and as many at once."""

_CHUNK = 64 << 10
_LAST_CHUNKS = 64
_TAIL = 2048

_log = logging.getLogger(__name__)


class OutputPipe:
    """The reading end of one process's standard output and error."""

    def __init__(self, name: str) -> None:
        self.bytes = 0
        self.lines = 0
        self.dropped = 0
        self.tail = b""
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._allowance = float(RATE)
        self._at = self._loop.time()
        self._descriptor, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self.writer, True)
        try:
            self._loop.add_reader(self._descriptor, self._read)
        except BaseException:
            os.close(self._descriptor)
            os.close(self.writer)
            raise

    def close_writer(self) -> None:
        """Give up our copy of the end that the process writes to."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        """Take what is left, without waiting for an end: a process left behind may hold the pipe open for ever."""
        self.close_writer()
        if self._descriptor >= 0:
            for _ in range(_LAST_CHUNKS):
                if not self._read():
                    break
        self._close_reader()

    def _read(self) -> bool:
        if self._descriptor < 0:
            return False
        try:
            chunk = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except (OSError, MemoryError):
            chunk = b""  # a reader that fails would be called again at once, for ever
        if not chunk:
            self._close_reader()
            return False
        self.bytes += len(chunk)
        self.lines += chunk.count(b"\n")
        self.tail = (self.tail + chunk[-_TAIL:])[-_TAIL:]
        self._pass_on(chunk)
        return True

    def _pass_on(self, chunk: bytes) -> None:
        now = self._loop.time()
        self._allowance = min(float(RATE), self._allowance + (now - self._at) * RATE)
        self._at = now
        passed = chunk[: int(self._allowance)]
        self._allowance -= len(passed)
        self.dropped += len(chunk) - len(passed)
        if passed and _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s prints: %s", self._name, passed.decode("utf-8", "backslashreplace").rstrip("\n"))

    def _close_reader(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
