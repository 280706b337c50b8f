"""The fork server: imports CrewAI once, forks a child for each Fork packet, and sees that nothing of a run stays.

    python -m crewai_sidecar.child.forkserver FD

FD is one end of a SOCK_SEQPACKET pair. The first packet is a Configure; then ForkServerReady is answered, and Fork
packets are served until the socket ends. The process has one thread, always: a fork with a second one could leave a
lock held for ever in the child, which would hang. It is a child subreaper and ignores SIGTERM: the service decides when
it ends, and at the end of the socket it takes all its descendants along.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from crewai_sidecar import frames, linux

__all__ = ["main"]

SWEEP_SECONDS = 1.0
"""Time that what is left of a run has to be gone; who is still there then is reported, not waited for."""

LAST_SWEEP_SECONDS = 5.0
"""The same for all runs at the end of the fork server."""

_PAUSE = 0.002


def main() -> None:
    """Serve until the socket ends. Ends the process with one line on standard error if it must not fork."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # numbers, not paths; what was handed down stays here
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.set_inheritable(int(name), False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    linux.set_subreaper()
    code = 1
    try:
        configure = frames.decode(control.recv(frames.MAX_PACKET_BYTES), frames.Configure)
        ForkServer(control, configure, _preload()).serve()
        code = 0
    except Exception as error:  # noqa: BLE001  # the descendants have to be taken along whatever it was
        sys.stderr.write(f"the fork server ends: {type(error).__name__}: {error}\n")
    finally:
        _end(code)


def _preload() -> Callable[..., int]:
    """Import what every child needs; return the function that a child lives in.

    Raises RuntimeError when that has started a thread: a child forked beside one may hang.
    """
    life = importlib.import_module("crewai_sidecar.child.life")
    importlib.import_module("crewai_sidecar.child.crewai_adapter.operations")
    with contextlib.suppress(ImportError):  # it comes with crewai's memory; without it a memory run starts slower
        importlib.import_module("lance_namespace")
    for name in frames.HIDDEN_VARIABLES:  # crewai has read a .env file, if there is one above its own directory
        os.environ.pop(name, None)
    names = linux.threads()
    if len(names) != 1:
        raise RuntimeError(f"{len(names)} threads after its imports instead of one ({', '.join(names)})")
    os.chdir(os.environ.get("HOME", "/"))  # only now: relative entries of sys.path were made absolute at the start
    gc.collect()
    gc.disable()
    gc.freeze()  # a full collection in a child would otherwise copy every page of what was imported here
    live: Callable[..., int] = life.live
    return live


class ForkServer:
    """One thread, one loop: requests from the service, exits from the kernel."""

    def __init__(self, control: socket.socket, configure: frames.Configure, live: Callable[..., int]) -> None:
        self._control = control
        self._configure = configure
        self._live = live
        self._children: set[int] = set()
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Fork and reap until the service's end of the socket is closed. Raises OSError when it cannot be answered."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler there is no wake-up
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._say(frames.ForkServerReady(pid=os.getpid()))
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._wake], [], [])
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._take():
                return

    def _take(self) -> bool:
        """Serve one packet; False at the end of the socket."""
        try:
            text, descriptors, _, _ = socket.recv_fds(self._control, frames.MAX_PACKET_BYTES, 4)
        except ConnectionResetError:
            return False
        if not text:
            return False
        number = -1
        try:
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)  # recv_fds ignores MSG_CMSG_CLOEXEC
            match frames.decode(text, frames.Fork | frames.Ping):
                case frames.Fork() as fork:
                    number = fork.number
                    self._fork(fork, descriptors)
                case frames.Ping():
                    self._say(frames.Pong())
        except (frames.FrameError, OSError) as error:
            self._say(frames.ForkFailed(number=number, error=f"{type(error).__name__}: {error}"))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _fork(self, fork: frames.Fork, descriptors: list[int]) -> None:
        if len(descriptors) != 2:
            raise frames.FrameError(f"{len(descriptors)} descriptors came with a fork instead of 2")
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:  # whatever happens: a child that came back from here would be a second fork server
                linux.die_with(server)
                signal.set_wakeup_fd(-1)
                for descriptor in (self._control.detach(), self._wake, self._waker):
                    os.close(descriptor)
                code = self._live(fork, self._configure, descriptors)
            except BaseException as error:  # noqa: BLE001  # as above
                with contextlib.suppress(Exception):
                    os.write(2, f"the child ends: {type(error).__name__}\n".encode())
            finally:
                os._exit(code)
        self._children.add(pid)
        self._say(frames.Forked(number=fork.number, pid=pid))

    def _reap(self) -> None:
        """Take every exit that there is. A run has ended when its child is reaped and the rest of its tree is gone."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if pid in self._children:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)  # while the zombie still keeps the number from being used again
            _, status = os.waitpid(pid, 0)
            if pid in self._children:
                self._children.remove(pid)
                strangers = _sweep(self._children)
                self._say(frames.Exited(pid=pid, code=os.waitstatus_to_exitcode(status), strangers=strangers))

    def _say(self, message: frames.FromForkServer) -> None:
        self._control.send(frames.packet(message))


def _sweep(known: set[int]) -> int:
    """Kill every child that is not in `known`, and all below it; return how many are left after SWEEP_SECONDS.

    What a run's processes left behind comes to its child, which is a subreaper; when that has gone, it comes here. So
    whoever is a child of this process without having been forked by it belongs to a run that has ended.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    while strangers := [pid for pid in linux.children() if pid not in known]:
        table = linux.processes()
        linux.kill_all(one for pid in strangers for one in (pid, *linux.descendants(pid, table)))
        for pid in strangers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return len([pid for pid in linux.children() if pid not in known])
        time.sleep(_PAUSE)
    return 0


def _end(code: int) -> None:
    """Take every descendant along and end, without running anything of what was imported."""
    deadline = time.monotonic() + LAST_SWEEP_SECONDS
    while (pids := linux.descendants(os.getpid())) and time.monotonic() < deadline:
        linux.kill_all(pids)
        time.sleep(_PAUSE)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
