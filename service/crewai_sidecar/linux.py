"""What service, fork server and children ask of the Linux kernel about processes.

Three calls of prctl, and /proc read as a tree. Nothing here trusts a process to be honest about itself: the parent
links are the kernel's, and a process id is only ever used for a process that its reader is the ancestor of.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "children", "descendants", "die_with", "kill_all", "processes", "set_subreaper", "threads"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What a look at a process says that has ended meanwhile, or is hidden. Any other error must not pass for that."""

_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """One line of /proc: the parent and the session of a process, and whether it only waits to be reaped."""

    parent: int
    session: int
    zombie: bool


def set_subreaper() -> None:
    """Become the new parent of every descendant whose own parent has gone.

    Raises OSError where the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Be killed when `parent` ends; end at once if it has ended already.

    The signal follows the thread that forked: to be called in the child of a process whose forking thread lives on.
    Raises OSError where the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def threads() -> list[str]:
    """Names of all threads of this process, those that Python does not know among them."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text().strip())
    return names


def processes() -> dict[int, Process]:
    """Read the whole process table once. Raises OSError when there is no descriptor to read it with."""
    table: dict[int, Process] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  # Path objects would double the cost of this scan
        if name.isdigit():
            with contextlib.suppress(*_GONE), open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123  # as above
                fields = stat.read().rpartition(b")")[2].split()
                table[int(name)] = Process(int(fields[1]), int(fields[3]), fields[0] in (b"Z", b"X"))
    return table


def descendants(root: int, table: dict[int, Process] | None = None) -> list[int]:
    """Process ids below `root` that still run, parents before their children."""
    below: dict[int, list[int]] = {}
    table = processes() if table is None else table
    for pid, process in table.items():
        below.setdefault(process.parent, []).append(pid)
    found: list[int] = []
    front = [root]
    while front:
        front = [pid for parent in front for pid in below.get(parent, ())]
        found += front
    return [pid for pid in found if not table[pid].zombie]


def children() -> list[int]:
    """Process ids of this process's own children, zombies among them. For a process with one thread."""
    me = os.getpid()
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{me}/children").read_text().split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [pid for pid, process in processes().items() if process.parent == me]


def kill_all(pids: Iterable[int]) -> None:
    """Send SIGKILL to each; one that has gone, or may not be signalled, is passed over."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
