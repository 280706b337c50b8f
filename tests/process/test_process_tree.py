"""What a former service left: found by its marker, ended, and the second lock taken; or named in a refusal."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crewai_sidecar import linux
from crewai_sidecar.errors import StartRefused, VolumeRefused
from crewai_sidecar.runner.process_tree import MARKER, claim, kill_pids, marked, sweep
from tests.process.sidecar import Sidecar

HOLDER = (
    "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH); print(flush=True); time.sleep(60)"
)


@pytest.fixture
def journal_id() -> str:
    """Give the id of a journal that no other test has."""
    return uuid.uuid4().hex


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Give a list of processes that are ended with the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def sleeper(started: list[subprocess.Popen[bytes]], **environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["/bin/sleep", "60"], env=environment)
    started.append(process)
    return process


def test_a_claim_ends_what_carries_the_journal_s_marker_and_nothing_else(
    tmp_path: Path, journal_id: str, started: list[subprocess.Popen[bytes]]
) -> None:
    """Processes of another journal, of a copy with the same id, and of nobody's stay."""
    path = tmp_path / "runs.json.workers"
    descriptor, marker = claim(path, journal_id)
    os.close(descriptor)
    copy, copied = claim(tmp_path / "copy.workers", journal_id)
    os.close(copy)
    ours = sleeper(started, **{MARKER: marker})
    others = [sleeper(started, **{MARKER: one}) for one in (uuid.uuid4().hex, marker + "0", copied)]
    others.append(sleeper(started))
    assert marked(marker) == [ours.pid]
    descriptor, again = claim(path, journal_id)
    try:
        assert again == marker
        assert ours.wait(5) == -signal.SIGKILL
        assert [other.poll() for other in others] == [None] * 4
    finally:
        os.close(descriptor)


def test_a_service_on_a_copy_of_a_journal_leaves_the_original_s_runs_alone(
    make_sidecar: Callable[..., Sidecar], tmp_path: Path
) -> None:
    """Same journal id, same run directory, same host: the run of the other goes on, and so do its files."""
    original = make_sidecar("original").start()
    action_id = original.begin("crew", {"seconds": 60, "mark": "begun"})
    original.wait_for_effect("begun")
    roots = list((original.directory / "run").iterdir())
    shutil.copytree(original.directory / "state", tmp_path / "copy" / "state")
    copy = make_sidecar("copy", run_dir=str(original.directory / "run")).start()
    assert copy.record(action_id)["cause"] == "restart"
    assert original.record(action_id)["status"] == "running"
    (root,) = roots
    assert {one.name.partition("-")[0] for one in root.iterdir()} == {"run", "server"}
    assert len(list((original.directory / "run").iterdir())) == 2


def test_the_claimed_lock_is_shared_and_private(tmp_path: Path, journal_id: str) -> None:
    """Its file is this user's alone, and a second start cannot have it alone as long as anybody holds it."""
    path = tmp_path / "runs.json.workers"
    descriptor, _ = claim(path, journal_id)
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        assert not os.get_inheritable(descriptor)
        with path.open() as other:
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def test_a_claim_waits_for_the_lock_and_then_refuses_and_names_who_holds_it(
    tmp_path: Path, journal_id: str, started: list[subprocess.Popen[bytes]]
) -> None:
    """A process without the marker is not killed: a person has to see to it."""
    path = tmp_path / "runs.json.workers"
    path.touch()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    started.append(holder)
    assert holder.stdout is not None
    holder.stdout.readline()
    begun = time.monotonic()
    with pytest.raises(StartRefused) as refused:
        claim(path, journal_id, seconds=0.3)
    assert time.monotonic() - begun >= 0.3
    assert str(path) in str(refused.value)
    assert str(holder.pid) in str(refused.value)
    assert holder.poll() is None
    holder.kill()
    os.close(claim(path, journal_id).descriptor)


@pytest.mark.parametrize("kind", ["symlink", "directory"])
def test_a_second_lock_that_is_no_plain_file_is_refused(tmp_path: Path, journal_id: str, kind: str) -> None:
    """Nothing is followed and nothing is changed."""
    path = tmp_path / "runs.json.workers"
    if kind == "symlink":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
    with pytest.raises(VolumeRefused, match="workers"):
        claim(path, journal_id)
    assert not (tmp_path / "elsewhere").exists()


def test_a_process_is_killed_only_if_it_is_still_the_one_that_was_meant(
    started: list[subprocess.Popen[bytes]],
) -> None:
    """The check comes after the process can no longer be mistaken; one that has gone is passed over."""
    spared, meant, gone = sleeper(started), sleeper(started), sleeper(started)
    gone.kill()
    gone.wait()
    kill_pids([spared.pid, meant.pid, gone.pid], lambda pid: pid == meant.pid)
    assert meant.wait(5) == -signal.SIGKILL
    assert spared.poll() is None


SWEEPER = """
import os, subprocess, sys, time
from crewai_sidecar import linux
from crewai_sidecar.runner.process_tree import sweep
linux.set_subreaper()
own = subprocess.Popen(["/bin/sleep", "60"])
known = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
server = subprocess.Popen(
    [sys.executable, "-c", "import os, subprocess, time\\n"
     "if os.fork() == 0:\\n os.setsid(); os.execve('/bin/sleep', ['sleep', '60'], {})\\n"
     "subprocess.Popen(['/bin/sleep', '60'])\\nprint(flush=True)\\ntime.sleep(60)"],
    start_new_session=True, stdout=subprocess.PIPE)
server.stdout.readline()
left = [pid for pid in linux.descendants(server.pid)]
assert len(left) == 2, left
server.kill()
server.wait()
assert sweep([known.pid], 5) == 0
assert not [pid for pid in left if pid in linux.processes()]
assert own.poll() is None and known.poll() is None
own.kill(), known.kill()
"""


def test_a_sweep_ends_what_a_dead_fork_server_left_and_spares_the_service_s_own() -> None:
    """Sessions tell them apart, also where a daemon has neither marker nor group."""
    done = subprocess.run([sys.executable, "-c", SWEEPER], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_sweep_of_nothing_is_nothing() -> None:
    """In this process there is nobody of another session, beside those that are known."""
    assert sweep([pid for pid, process in linux.processes().items() if process.parent == os.getpid()], 1) == 0
