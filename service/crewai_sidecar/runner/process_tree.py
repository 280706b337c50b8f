"""Whose processes are still here: the marker of a journal, the second lock, and sweeping what a fork server left.

Every process that a fork server starts carries the journal's marker in the environment it was started with, and holds
the second lock as long as it keeps its descriptors. The marker is the journal's id and the lock file's device and inode
number: a copy of a journal has the same id, and its service must not take the original's processes for its own.

Both can be shed by a process that wants to; the tree below a living ancestor cannot. So a running service sweeps by the
tree, and a start, which has no ancestor to ask, by marker and lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from crewai_sidecar.errors import StartRefused, VolumeRefused
from crewai_sidecar.linux import descendants, processes, set_subreaper

__all__ = [
    "MARKER",
    "Claim",
    "claim",
    "descendants",
    "kill_pids",
    "marked",
    "marker_of",
    "reap",
    "reap_strangers",
    "set_subreaper",
    "sweep",
]

MARKER = "CREWAI_SIDECAR_JOURNAL"
"""Variable that holds the marker. What counts is /proc/PID/environ: the text that a process was started with."""

CLAIM_SECONDS = 5.0
"""Time that processes of a former service have to be gone."""

_PAUSE = 0.01


class Claim(NamedTuple):
    """A second lock that is held: the descriptor, for the fork server to inherit, and the marker of its processes."""

    descriptor: int
    marker: str


def marker_of(descriptor: int, journal_id: str) -> str:
    """Name this one copy of a journal, by the file of its second lock."""
    found = os.fstat(descriptor)
    return f"{journal_id}-{found.st_dev}-{found.st_ino}"


def marked(marker: str) -> list[int]:
    """Process ids of the living, other than this process, that were started with a marker."""
    me = os.getpid()
    return [pid for pid in processes() if pid != me and _is_marked(pid, marker)]


def kill_pids(pids: Iterable[int], still: Callable[[int], bool]) -> None:
    """Send SIGKILL to each process of which `still` holds once it cannot be mistaken for another any more."""
    for pid in pids:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if still(pid):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def claim(path: Path, journal_id: str, seconds: float = CLAIM_SECONDS) -> Claim:
    """End what a former service of this journal left running, and take the second lock, shared. Blocks.

    The lock is held until the last process that has inherited it is gone.

    Raises VolumeRefused for a path that is not a plain file, StartRefused when processes are left after `seconds`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise VolumeRefused(path, error.strerror or str(error), "It must be a file of this user, or absent") from None
    try:
        _check_regular(descriptor, path)
        marker = marker_of(descriptor, journal_id)
        _clear(descriptor, path, marker, time.monotonic() + seconds)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except BaseException:
        os.close(descriptor)
        raise
    return Claim(descriptor, marker)


def sweep(known: Iterable[int], seconds: float) -> int:
    """End all that a dead fork server left to this process, its subreaper; return how many are left. Blocks.

    A fork server has a session of its own, so nothing below it can ever have this process's; that tells what came from
    it apart from what this process has started for itself. `known` are processes to be left alone with all below them.
    Where the process table cannot be read in all that time, one process is said to be left: nobody knows of none.
    """
    mine = os.getsid(0)
    spared = set(known)
    deadline = time.monotonic() + seconds
    while True:
        try:
            table = processes()
        except OSError:  # no descriptor is left, for the moment
            if time.monotonic() > deadline:
                return 1
            time.sleep(_PAUSE)
            continue
        left = [
            pid
            for pid, process in table.items()
            if process.parent == os.getpid() and process.session != mine and pid not in spared
        ]
        if not left:
            return 0
        for pid in left:
            for one in (pid, *descendants(pid, table)):
                with contextlib.suppress(OSError):
                    os.kill(one, signal.SIGKILL)
            reap(pid)
        if time.monotonic() > deadline:
            return len(left)
        time.sleep(_PAUSE)


def reap(pid: int) -> None:
    """Take the exit of one process, if it has ended. Never of any child: that would steal exits from subprocess."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def reap_strangers(known: int | None) -> None:
    """Take the exit of every child but `known`. For process 1, to which the kernel gives all orphans.

    `known` is waited for elsewhere; where it has ended, what is behind it is left for the next call.
    """
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != known:
            reap(ended.si_pid)


def _check_regular(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise VolumeRefused(path, "it is not a regular file", "It must be a file of this user, or absent")


def _clear(descriptor: int, path: Path, marker: str, deadline: float) -> None:
    """Kill what carries the marker until there is nothing of it and the lock is free."""
    while True:
        left = marked(marker)
        kill_pids(left, lambda pid: _is_marked(pid, marker))
        if not left and _locked(descriptor):
            return
        if time.monotonic() > deadline:
            raise StartRefused(_who_is_left(path, left))
        time.sleep(_PAUSE)


def _is_marked(pid: int, marker: str) -> bool:
    """Whether a process was started with the marker. A zombie has no environment, and so none."""
    try:
        strings = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARKER}={marker}".encode() in strings


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _who_is_left(path: Path, left: list[int]) -> str:
    pids = sorted({*left, *_holders(path)})
    who = f"processes {', '.join(map(str, pids))}" if pids else "processes that this user may not see"
    return f"{path}: {who} of a former service still run. End them, or restart the machine or pod, and start again"


def _holders(path: Path) -> list[int]:
    """Process ids that /proc/locks names for a file: those that took the lock, where they still live."""
    found = path.stat()
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    pids = []
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if inode in fields:
            pids.append(int(fields[fields.index(inode) - 1]))
    return [pid for pid in pids if pid in processes() and pid != os.getpid()]
