"""The fork server as the service sees it: a process, a control socket, and the children that it has forked."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from crewai_sidecar import frames
from crewai_sidecar.errors import WorkerLost
from crewai_sidecar.runner.children import Child
from crewai_sidecar.runner.output import OutputPipe
from crewai_sidecar.runner.process_tree import MARKER

__all__ = ["ForkRefused", "ServerProcess", "environment"]

_ALWAYS = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "CREWAI_TESTING": "true",  # without it CrewAI may ask for consent and wait for an answer (CREWAI.md 5)
    "CREWAI_DISABLE_VERSION_CHECK": "true",
}
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""For the fork server only: a library that starts a thread at import would make every fork unsound."""

START_SECONDS = 300.0
"""Time for the imports of a fork server. They take seconds, and more than a minute from a cold disk."""

PING_SECONDS = 5.0
"""Time without a word after which a fork server is asked for one, and time that it has to answer.

What keeps it longest is a sweep: 1 s for each run that has ended, and it says a word after each."""

_TICKS = 5
_CLOSE_SECONDS = 2.0
_NO_ROOM = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)

_log = logging.getLogger(__name__)


class ForkRefused(Exception):
    """Raised when the fork server is there and could not fork."""


def environment(user: Mapping[str, str], directory: Path, marker: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the fork server's environment, and the user's own values that its children are to have again."""
    server = {name: value for name, value in user.items() if name not in frames.HIDDEN_VARIABLES}
    server |= _ALWAYS | _ONE_THREAD
    server |= {"HOME": str(directory / "home"), "TMPDIR": str(directory / "tmp")}
    server |= {"CREWAI_STORAGE_DIR": str(directory / "storage"), MARKER: marker}
    return server, {name: user[name] for name in _ONE_THREAD if name in user}


class ServerProcess:
    """One fork server, from its start to its end. `children` are those that have not exited, by process id."""

    def __init__(
        self,
        *,
        forked: Callable[[frames.Forked], None],
        exited: Callable[[Child, frames.Exited], None],
        lost: Callable[[], None],
        ping_seconds: float = PING_SECONDS,
    ) -> None:
        self.children: dict[int, Child] = {}
        self.alive = False
        self._serving = False
        self._heard = False
        self._ping_seconds = ping_seconds
        self._watch_task: asyncio.Task[None] | None = None
        self._forked, self._exited, self._lost = forked, exited, lost
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended = asyncio.Event()
        self._pending: dict[int, tuple[Child, asyncio.Future[None]]] = {}

    async def start(self, configure: frames.Configure, server_environment: dict[str, str], inherit: int | None) -> None:
        """Start the process and wait until it can fork.

        Raises WorkerLost with what it said last when it ends before that, or with why it could not be started.
        """
        try:
            self._begin(configure, server_environment, inherit)
        except OSError as error:
            raise WorkerLost(str(error)) from None
        with contextlib.suppress(OSError):  # it has ended already, and says so by its exit
            self._control.send(frames.packet(configure))
        await asyncio.wait([self._ready], timeout=START_SECONDS)
        if not self._ready.done():
            _log.error("the fork server was not ready within %d s; it is killed", START_SECONDS)
            self.kill()
        await self._ready
        if not self.alive:
            raise WorkerLost("the fork server ended as soon as it was ready")
        self._serving = True
        self._watch_task = self._loop.create_task(self._watch(), name="watch the fork server")

    def _begin(self, configure: frames.Configure, server_environment: dict[str, str], inherit: int | None) -> None:
        """Start the process; nothing of it is left when that raises OSError."""
        with contextlib.ExitStack() as undo:
            self.output = OutputPipe("the fork server")  # what it says last is why it ended
            undo.callback(self.output.close)
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(self._control.close)
            self._control.setblocking(False)
            passed = (theirs.fileno(),) if inherit is None else (theirs.fileno(), inherit)
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603  # a command of our own
                    [sys.executable, "-P", "-m", "crewai_sidecar.child.forkserver", str(theirs.fileno())],
                    cwd=configure.start_directory,
                    env=server_environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self.output.writer,
                    stderr=self.output.writer,
                    pass_fds=passed,
                    start_new_session=True,  # so that a terminal's signals miss it, and a sweep can tell what is its
                )
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.output.close_writer()
            self.pid = self._process.pid
            self._handle = os.pidfd_open(self.pid)
            undo.callback(os.close, self._handle)
            self._loop.add_reader(self._handle, self._gone)
            undo.callback(self._loop.remove_reader, self._handle)
            self._loop.add_reader(self._control, self._receive)
            self.alive = True
            undo.pop_all()

    async def fork(self, child: Child, *, describe: bool = False) -> None:
        """Fork a process for a child.

        Raises ForkRefused when there is none, WorkerLost when the fork server has gone.
        """
        forked: asyncio.Future[None] = self._loop.create_future()
        self._pending[child.number] = (child, forked)
        packet = frames.packet(frames.Fork(number=child.number, directory=str(child.directory), describe=describe))
        try:
            while self.alive:
                try:
                    socket.send_fds(self._control, [packet], [child.theirs.fileno(), child.output.writer])
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.01)  # a packet socket has no other sign of room that is worth its code
                except OSError as error:
                    if error.errno in _NO_ROOM:
                        raise ForkRefused(str(error)) from None
                    self.kill()
                    break
            child.handed_over()
            if not self.alive:
                raise WorkerLost("the fork server has gone")
            await asyncio.shield(forked)  # also when nobody waits any more: the child will be there
        except asyncio.CancelledError:
            forked.add_done_callback(lambda done: child.kill() if done.exception() is None else None)
            raise
        except ForkRefused:
            self._pending.pop(child.number, None)
            raise

    async def close(self) -> None:
        """End the process and all below it, by closing its socket; by force where that does not help."""
        if self.alive:
            self._loop.remove_reader(self._control)
            self._control.close()
            try:
                await asyncio.wait_for(self._ended.wait(), _CLOSE_SECONDS)
            except TimeoutError:
                self.kill()
                await self._ended.wait()

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        self._process.kill()

    def _receive(self) -> None:
        try:
            text = self._control.recv(frames.MAX_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            text = b""
        if not text:
            self._loop.remove_reader(self._control)  # its end shows at the pidfd
            self.kill()
            return
        self._heard = True
        try:
            self._hear(frames.decode(text, frames.FromForkServer))
        except Exception:  # noqa: BLE001  # whoever waits for what is in it would wait for ever
            _log.exception("a packet of the fork server cannot be used; it is killed")
            self.kill()

    def _hear(self, message: frames.FromForkServer) -> None:
        match message:
            case frames.ForkServerReady():
                self._ready.set_result(None)
            case frames.Forked(number=number, pid=pid) as forked:
                child, future = self._pending.pop(number)
                child.pid = pid
                self.children[pid] = child
                future.set_result(None)
                self._forked(forked)
            case frames.ForkFailed(number=number, error=error):
                if number in self._pending:
                    self._pending.pop(number)[1].set_exception(ForkRefused(error))
            case frames.Exited(pid=pid) as exited:
                self._exited(self.children.pop(pid), exited)
            case frames.Pong():
                pass

    async def _watch(self) -> None:
        """Kill a fork server that neither speaks nor answers: one that is stopped would be waited for, for ever.

        Time is counted in wake-ups of this process: one that was itself stopped must not take that for silence.
        """
        silent = 0
        while silent < 2 * _TICKS:
            await asyncio.sleep(self._ping_seconds / _TICKS)
            silent = 0 if self._heard else silent + 1
            self._heard = False
            if silent == _TICKS:
                with contextlib.suppress(OSError):  # no room for a packet is no word either
                    self._control.send(frames.packet(frames.Ping()))
        _log.error("the fork server has not answered for %g s; it is killed", self._ping_seconds)
        self.kill()

    def _gone(self) -> None:
        """The process has ended: take its exit, and with it what it has still said."""
        if self._watch_task is not None:
            self._watch_task.cancel()
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
            self._control.close()
        code = self._process.wait()
        self.alive = False
        self.output.close()
        last = self.output.tail.decode("utf-8", "replace").strip().rpartition("\n")[2]
        error = WorkerLost(last or f"the fork server ended with code {code}")
        for _, future in self._pending.values():
            future.set_exception(error)
            future.exception()  # whoever forked may have been cancelled since
        self._pending.clear()
        self._ended.set()
        if self._serving:
            self._lost()
        elif not self._ready.done():
            self._ready.set_exception(error)
