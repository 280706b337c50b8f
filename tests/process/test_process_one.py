"""The service as process 1 of a container (needs root, for the namespace)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.sidecar import Sidecar, family, until, until_gone

pytestmark = pytest.mark.root

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    """Skip where root may not make a process namespace, as in most containers."""
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make a process namespace")


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
    sidecar = make_sidecar()
    sidecar.prefix = NAMESPACE
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


def test_process_one_reaps_orphans_that_were_never_its_own(make_sidecar: Callable[..., Sidecar]) -> None:
    """A probe that is run in the container leaves a process behind: it is reaped when it ends."""
    assert shutil.which("nsenter")
    sidecar = make_sidecar()
    sidecar.prefix = NAMESPACE
    sidecar.start()
    (inner,) = family(sidecar.pid) - {sidecar.pid} - _grandchildren(sidecar.pid)
    own = family(inner) - {inner} - _grandchildren(inner)
    for _ in range(3):
        subprocess.run(["nsenter", f"--target={inner}", "--pid", "--mount", "sh", "-c", "sleep 0.2 &"], check=True)
    until(lambda: family(inner) - {inner} - _grandchildren(inner) == own, 5, "the end of the orphans")
    until(lambda: not zombies({inner}), 5, "no zombie")
    assert sidecar.submit("crew").status_code == 200


def _grandchildren(pid: int) -> set[int]:
    """Descendants that are not a process's own children."""
    below = family(pid) - {pid}
    return {one for one in below if int(Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[1]) != pid}
