"""Crews that end badly, or will not end at all, and ones that leave something behind."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Does:
    """Does one thing when it is started, and says by a file in `marks` that it has begun."""

    def __init__(self, deed: Callable[[dict[str, Any]], Any]) -> None:
        self._deed = deed

    def kickoff(self, inputs: dict[str, Any]) -> Any:
        if "marks" in inputs:
            Path(inputs["marks"], "begun").touch()
        return self._deed(inputs)


def sleeps(_: Any) -> None:
    """Sleep in C with the interpreter lock released."""
    time.sleep(1000)


def holds_the_interpreter(_: Any) -> None:
    """Stay in C for hours and hold the interpreter's lock: no Python of this process runs."""
    sum(itertools.repeat(1, 10**13))


def computes_in_c(_: Any) -> None:
    """Stay in C for hours without the interpreter's lock."""
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)


def loops(_: Any) -> None:
    """Run Python for ever."""
    while True:
        pass


def swallows(_: Any) -> None:
    """Swallow whatever is raised."""
    while True:
        try:
            time.sleep(1000)
        except BaseException:  # noqa: BLE001, S112  # the very thing
            continue


def ignores_sigterm(_: Any) -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def shell_that_ignores(inputs: dict[str, Any]) -> None:
    """Wait for a shell that ignores SIGTERM, in this process group."""
    subprocess.run(["sh", "-c", "trap '' TERM; sleep 1000 & wait"], check=False)


def daemonises(inputs: dict[str, Any]) -> None:
    """Start a daemon in a session of its own, with no environment, and sleep."""
    daemon(inputs)
    time.sleep(1000)


def daemon(inputs: dict[str, Any]) -> str:
    """Leave a daemon behind that holds socket and pipes open; write its process id down and go."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(inputs["marks"], "daemon").write_text(str(os.getpid()))
            for descriptor in range(3, 64):
                try:
                    os.set_inheritable(descriptor, True)
                except OSError:
                    continue
            os.execve("/bin/sleep", ["sleep", "1000"], {})  # noqa: S606  # no shell is wanted
        os._exit(0)
    while not Path(inputs["marks"], "daemon").exists() or not Path(inputs["marks"], "daemon").read_text():
        time.sleep(0.002)
    return "left a daemon"


def forks(inputs: dict[str, Any]) -> str:
    """Become two processes that both come back from the crew."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return "parent" if pid else "copy"


def segfaults(_: Any) -> None:
    """Read address zero."""
    ctypes.string_at(0)


def exits(_: Any) -> None:
    """End the process with code 0, without a result."""
    os._exit(0)


def kills_itself(_: Any) -> None:
    """End the process by a signal."""
    os.kill(os.getpid(), signal.SIGKILL)


def eats_memory(_: Any) -> None:
    """Take memory until the limit is met."""
    limit = 512 << 20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    blocks = []
    while True:
        blocks.append(bytearray(16 << 20))


def writes_nonsense(_: Any) -> None:
    """Write something that is no frame to every socket of the process."""
    for descriptor in range(3, 64):
        try:
            socket.socket(fileno=os.dup(descriptor)).sendall(b"\xff\xff\xff\xff nonsense")
        except OSError:
            continue
    time.sleep(1000)


def spoils_its_directory(_: Any) -> str:
    """Make the working directory unreadable for its own user."""
    Path("deep/deeper").mkdir(parents=True)
    Path("deep/deeper/file").touch()
    Path("deep/outside").symlink_to("/usr")
    Path("deep/deeper").chmod(0)
    Path("deep").chmod(0)
    return "spoiled"


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        return False


def looks_around(_: Any) -> dict[str, Any]:
    """Tell where it is and what it has."""
    return {
        "raw": "",
        "json_dict": {
            "cwd": str(Path.cwd()),
            "environment": dict(os.environ),
            "stdin": Path("/proc/self/fd/0").readlink().name,
            "sigterm": str(signal.getsignal(signal.SIGTERM)),
            "descriptors": sorted(str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()),
            "inheritable": [one for one in range(3, 64) if _is_inheritable(one)],
            "group": os.getpgid(0) == os.getpid(),
        },
    }


def _crew(deed: Callable[[dict[str, Any]], Any]) -> Callable[[], Does]:
    return lambda: Does(deed)


crews = {
    deed.__name__: _crew(deed)
    for deed in (
        sleeps,
        holds_the_interpreter,
        computes_in_c,
        loops,
        swallows,
        ignores_sigterm,
        shell_that_ignores,
        daemonises,
        daemon,
        forks,
        segfaults,
        exits,
        kills_itself,
        eats_memory,
        writes_nonsense,
        spoils_its_directory,
        looks_around,
    )
}
