"""One child as the service sees it: frames in, frames out, signals, and the exit that the fork server reports.

Frames are read when somebody asks for them. A consumer that is behind leaves them in the kernel's buffer, and when that
is full the child waits: no queue grows here, whatever a crew does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path

from crewai_sidecar.frames import (
    MAX_FRAME_BYTES,
    Crew,
    Exited,
    FrameError,
    FrameReader,
    FromChild,
    Job,
    Ready,
    ToChild,
    decode,
    frame,
)
from crewai_sidecar.runner.output import OutputPipe

__all__ = ["Child"]

_CHUNK = 64 << 10
_LAST_BYTES = 2 * MAX_FRAME_BYTES

_log = logging.getLogger(__name__)


class Child:
    """A forked process that waits for its job, runs it, or has ended.

    `error` says why a child cannot take a job: its registry did not load, or it ended before it was ready. `late` says
    that it was not ready in time.
    """

    def __init__(self, number: int, directory: Path) -> None:
        """Make both ends of socket and pipe. Raises OSError when there are no descriptors for them."""
        self.number = number
        self.directory = directory
        self.pid = -1
        self.error: str | None = None
        self.crews: list[Crew] | None = None
        self.late = False
        self.has_job = False
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[Exited] = self._loop.create_future()
        self.output = OutputPipe(f"child {number}")
        try:
            self._socket, self.theirs = socket.socketpair()
        except BaseException:
            self.output.close()
            raise
        self._socket.setblocking(False)
        self._reader = FrameReader()
        self._texts: deque[bytes] = deque()
        self._broken: FrameError | None = None
        self._ended = False
        self._waiting: asyncio.Future[None] | None = None
        self._unsent = bytearray()

    def handed_over(self) -> None:
        """The child has its ends of socket and pipe; drop ours."""
        self.theirs.close()
        self.output.close_writer()

    async def until_ready(self, seconds: float) -> None:
        """Wait until the child is ready, or is not going to be: then it has an `error`, and is killed if it lives."""
        message: FromChild | None = None
        try:
            async with asyncio.timeout(seconds), contextlib.aclosing(self.frames()) as messages:
                message = await anext(messages, None)
        except TimeoutError:
            self.late = True
            self.error = f"WorkerLost: it was not ready within {seconds:g} s"
        except FrameError as error:
            self.error = f"FrameError: {error}"
        if isinstance(message, Ready):
            self.crews, self.error = message.crews, message.error
            return
        self.kill()
        if self.error is None and message is not None:
            self.error = "FrameError: the child did not say that it is ready"
        if self.error is None:
            code = (await asyncio.shield(self.exited)).code
            self.error = f"WorkerLost: the child ended before it was ready, with code {code}"

    # -- frames ---------------------------------------------------------------------------------------------------

    async def frames(self) -> AsyncGenerator[FromChild, None]:
        """Give the child's messages, one by one, until its end of the socket is closed or it has exited.

        Raises FrameError for bytes that are not a message, or when there is no memory for them.
        """
        while True:
            while self._texts:
                yield decode(self._texts.popleft(), FromChild)
            if self._broken is not None:
                raise self._broken
            if self._ended:
                return
            if self._receive():
                await asyncio.sleep(0)  # a child that floods must not keep the loop for itself
            elif not self._ended:
                await self._readable()

    def send(self, message: ToChild) -> None:
        """Send a message. What the child does not take yet is kept for it; a child that has gone takes nothing.

        Raises FrameError for a message over the bound.
        """
        text = frame(message)
        self.has_job = self.has_job or isinstance(message, Job)
        if not self._ended:
            self._unsent += text
            self._write()

    # -- signals --------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """Send SIGTERM to the child's process group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the child's process group, and to the child if it has left that."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.exited.done() or self.pid <= 0:
            return
        for send in (os.killpg, os.kill):
            with contextlib.suppress(OSError):  # it has ended, and its exit is on the way
                send(self.pid, number)

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self, exited: Exited) -> None:
        """Take the exit: keep the frames that are in the socket for whoever reads them, and close everything."""
        taken = 0
        try:
            while taken < _LAST_BYTES and (count := self._receive()):
                taken += count
            self.close()
        except (OSError, MemoryError):  # whatever is lost of it, whoever waits for this exit must not wait for ever
            _log.exception("child %d was not closed in order", self.number)
        finally:
            if not self.exited.done():
                self.exited.set_result(exited)

    def close(self) -> None:
        """Close socket and pipe; nothing is sent or received after it."""
        self._ended = True
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
        self.theirs.close()
        self.output.close()
        self._wake()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _receive(self) -> int:
        """Take what has arrived, without waiting; 0 when there is nothing, or nothing more to come."""
        if self._ended:
            return 0
        data = b""
        try:
            data = self._socket.recv(_CHUNK)
            self._texts += self._reader.feed(data)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        except (FrameError, MemoryError) as error:
            self._broken = FrameError(str(error) or "there is no memory for a frame")
            self._ended = True
        if not data:
            self._ended = True
        return len(data)

    async def _readable(self) -> None:
        waiting = self._waiting = self._loop.create_future()
        try:
            self._loop.add_reader(self._socket, self._wake)
        except OSError as error:
            raise FrameError(f"its socket cannot be watched: {error}") from None
        try:
            await waiting
        finally:
            self._waiting = None
            if self._socket.fileno() >= 0:
                self._loop.remove_reader(self._socket)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _write(self) -> None:
        if self._socket.fileno() < 0:
            self._unsent.clear()
            return
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(memoryview(self._unsent)[:_CHUNK].tobytes())]
        except BlockingIOError:
            try:
                self._loop.add_writer(self._socket, self._write)
            except OSError:  # it will never have its message, so it is of no use
                self.kill()
            return
        except OSError:
            self._unsent.clear()
        self._loop.remove_writer(self._socket)
