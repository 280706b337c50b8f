"""The fork server by its own protocol: what it answers, what it ignores, and when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crewai_sidecar import frames, linux
from tests.process.launching import REPOSITORY, running
from tests.process.sidecar import until

CONFIGURE = frames.Configure(registry="tests.crews.duck:crews", start_directory=str(REPOSITORY))


class Server:
    """A fork server and the service's end of its socket."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(50)
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "crewai_sidecar.child.forkserver", str(theirs.fileno())],
                env={**os.environ, **one_thread, "CREWAI_DISABLE_TELEMETRY": "true", "HOME": str(home), **environment},
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
            )

    def say(self, packet: bytes, descriptors: list[int] | None = None) -> None:
        """Send a packet."""
        socket.send_fds(self.control, [packet], descriptors or [])

    def hear(self) -> Any:
        """Wait for the next message; None at the end."""
        text = self.control.recv(frames.MAX_PACKET_BYTES)
        return frames.decode(text, frames.FromForkServer) if text else None

    def errors(self) -> str:
        """Wait for the end and give what was written to standard error."""
        return self.process.communicate(timeout=20)[1].decode()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A fork server that is ready."""
    server = Server(tmp_path)
    try:
        server.say(frames.packet(CONFIGURE))
        assert server.hear() == frames.ForkServerReady(pid=server.process.pid)
        yield server
    finally:
        server.control.close()
        server.process.kill()
        server.errors()


def test_it_answers_what_it_cannot_use_and_serves_on(server: Server, tmp_path: Path) -> None:
    """Nonsense, a Configure too many, a fork without descriptors; signals change nothing; then a child is forked."""
    server.say(b"nonsense")
    assert server.hear().number == -1
    server.say(frames.packet(CONFIGURE))
    assert server.hear().number == -1
    fork = frames.Fork(number=7, directory=str(tmp_path / "run"))
    server.say(frames.packet(fork))
    failed = server.hear()
    assert (failed.number, failed.error) == (7, "FrameError: 0 descriptors came with a fork instead of 2")
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)
    (tmp_path / "run").mkdir()
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "printed").open("w") as output:
        server.say(frames.packet(fork), [theirs.fileno(), output.fileno()])
        theirs.close()
        forked = server.hear()
        assert forked.number == 7
        text = frames.receive(ours)
        assert text is not None
        assert frames.decode(text, frames.FromChild) == frames.Ready(pid=forked.pid)
        assert linux.processes()[forked.pid].parent == server.process.pid
        ours.close()
        assert server.hear() == frames.Exited(pid=forked.pid, code=0)


def test_it_ends_with_its_socket_and_takes_its_children_along(server: Server, tmp_path: Path) -> None:
    """A child that waits for a job is gone when the fork server is."""
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "printed").open("w") as output:
        fork = frames.Fork(number=1, directory=str(tmp_path))
        server.say(frames.packet(fork), [theirs.fileno(), output.fileno()])
        pid = server.hear().pid
        server.control.close()
        assert server.process.wait(10) == 0
        until(lambda: not running(pid), what="the end of the child")


def test_it_answers_a_ping(server: Server) -> None:
    """That is how the service knows that it is not stopped."""
    server.say(frames.packet(frames.Ping()))
    assert server.hear() == frames.Pong()


@pytest.mark.parametrize("sent", [b"\x00\x00\x00\x04nope", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02{}"])
def test_a_child_that_cannot_read_its_job_says_so(server: Server, tmp_path: Path, sent: bytes) -> None:
    """Nothing of the crew has begun, and the service is told that."""
    ours, theirs = socket.socketpair()
    with ours, theirs, (tmp_path / "printed").open("w") as output:
        fork = frames.Fork(number=1, directory=str(tmp_path))
        server.say(frames.packet(fork), [theirs.fileno(), output.fileno()])
        pid = server.hear().pid
        assert frames.receive(ours) is not None
        ours.sendall(sent)
        text = frames.receive(ours)
        assert text is not None
        assert frames.decode(text, frames.FromChild) == frames.Result(error_type="FrameError", provider_started=False)
        assert server.hear() == frames.Exited(pid=pid, code=0)


def test_it_refuses_to_fork_beside_a_second_thread(tmp_path: Path) -> None:
    """A child forked then could hang for ever; the line says how many threads there are and their names."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    server = Server(tmp_path, PYTHONPATH=str(tmp_path))
    with server.control:
        server.say(frames.packet(CONFIGURE))
        assert server.hear() is None
        errors = server.errors()
    assert server.process.returncode == 1
    assert errors.startswith("the fork server ends: RuntimeError: 2 threads after its imports instead of one (")
