"""The service as process 1 of a container (needs root, for the namespace)."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.sidecar import Sidecar, family, until, until_gone

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a process namespace"),
]


def zombies(pids: set[int]) -> list[str]:
    """Ended processes that nobody has reaped, among the descendants of some."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent = rest.split()[:2]
        if state == "Z" and int(parent) in pids:
            found.append(name)
    return found


def test_process_one_reaps_what_its_crews_leave_and_ends_on_sigterm(make_sidecar: Callable[..., Sidecar]) -> None:
    """No zombie is left by strangers, nor by a fork server that dies; SIGTERM is not ignored; exit code 0."""
    assert shutil.which("unshare")
    sidecar = make_sidecar()
    sidecar.prefix = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    sidecar.start()
    (inner,) = family(sidecar.pid) - {sidecar.pid} - _grandchildren(sidecar.pid)
    for number in range(3):
        assert sidecar.submit("leaver", action_id=f"act_{number}").status_code == 200
    until(lambda: not zombies(family(sidecar.pid)), 5, "no zombie")
    fork_server = min(family(inner) - {inner} - _grandchildren(inner))
    os.kill(fork_server, signal.SIGKILL)
    assert sidecar.submit("crew").status_code == 200
    until(lambda: not zombies(family(sidecar.pid)), 5, "no zombie after the fork server's death")
    everything = family(sidecar.pid)
    os.kill(inner, signal.SIGTERM)
    assert sidecar.process is not None
    assert sidecar.process.wait(15) == 0
    until_gone(everything)


def _grandchildren(pid: int) -> set[int]:
    """Descendants that are not a process's own children."""
    below = family(pid) - {pid}
    return {one for one in below if int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1]) != pid}
