"""Who may come how often and with what, seen from outside of a real service; and what its streams are at the start."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.process.sidecar import TOKEN, Sidecar, until


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def number(sidecar: Sidecar, series: str) -> float:
    text = httpx.get(sidecar.management_url + "/metrics").text
    found = re.search(rf"^crewai_sidecar_{re.escape(series)} (\S+)", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def resident_mib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found.group(1)) // 1024


@pytest.mark.parametrize("port", ["contract", "management"])
@pytest.mark.parametrize("head", [b"GET /", b"GET / HTTP/1.1\r\nX: "])
def test_a_head_without_an_end_takes_no_memory(shared: Sidecar, port: str, head: bytes) -> None:
    """Neither port asks for a token before it has read one."""
    before = resident_mib(shared.pid)
    with socket.create_connection(address(shared.url if port == "contract" else shared.management_url), 10) as wire:
        wire.sendall(head)
        with contextlib.suppress(ConnectionError, TimeoutError):
            for _ in range(50):
                wire.sendall(b"a" * (1 << 20))
        with contextlib.suppress(ConnectionError):
            assert wire.recv(4096).startswith(b"HTTP/1.1 431 ")
    assert resident_mib(shared.pid) < before + 20
    assert shared.request("GET", "/health").status_code == 200


@contextlib.contextmanager
def idle_connections(url: str, count: int) -> Iterator[None]:
    """Open connections that never say anything."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(socket.create_connection(address(url), 10))
        yield


@pytest.mark.parametrize("port", ["contract", "management"])
def test_connections_without_a_request_leave_the_journal_its_descriptors(
    make_sidecar: Callable[..., Sidecar], port: str
) -> None:
    """Those over the number are closed at once, and counted."""
    sidecar = make_sidecar()
    sidecar.prefix = ("prlimit", "--nofile=256:256")
    sidecar.start()
    url, most = (sidecar.url, 64) if port == "contract" else (sidecar.management_url, 32)
    with idle_connections(url, 300):
        if port == "management":
            assert sidecar.submit("crew", {"mark": "flooded"}, action_id="act_flooded").status_code == 200
        else:
            until(lambda: number(sidecar, 'connections_refused_total{listener="contract"}') >= 300 - most, 10, "300")
    until(lambda: _answers(sidecar), 10, "an answer after the flood")
    assert number(sidecar, f'connections_refused_total{{listener="{port}"}}') >= 300 - most
    assert sidecar.submit("crew", {"mark": "after"}).status_code == 200
    assert "Too many open files" not in sidecar.errors()


def _answers(sidecar: Sidecar) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return sidecar.request("GET", "/health").is_success and httpx.get(sidecar.management_url + "/livez").is_success
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("closed", [">&-", "<&- >&-", "<&- >&- 2>&-", "| true"])
def test_a_service_whose_standard_streams_are_closed_serves_and_ends_in_order(
    make_sidecar: Callable[..., Sidecar], tmp_path: Path, closed: str
) -> None:
    """No socket gets their numbers, and nobody need read the ready line."""
    sidecar = make_sidecar()
    contract, management = free_port(), free_port()
    sidecar.url, sidecar.management_url = f"http://127.0.0.1:{contract}", f"http://127.0.0.1:{management}"
    sidecar.settings |= {"AIP_CREWAI_PORT": str(contract), "AIP_CREWAI_MANAGEMENT_PORT": str(management)}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AIP_CREWAI_")} | sidecar.settings
    command = f"echo $BASHPID > {tmp_path}/pid; exec {sys.executable} -m crewai_sidecar serve"
    with sidecar.log.open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", f"( {command} ) {closed}"],
            env=environment, cwd=sidecar.start_directory, stdout=subprocess.DEVNULL, stderr=log,
        )  # fmt: skip
    try:
        until(lambda: shell.poll() is not None or _answers(sidecar), 30, "an answer")
        assert shell.poll() is None, sidecar.errors()
        assert sidecar.submit("crew", {"mark": "ran"}).status_code == 200
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        assert shell.wait(20) == 0, sidecar.errors()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        shell.kill()
        shell.wait()
    assert "Traceback" not in sidecar.errors()


def test_readers_that_stall_make_no_error_of_a_shutdown(make_sidecar: Callable[..., Sidecar]) -> None:
    """They are cut off; what was on disk stays there; exit code 0."""
    sidecar = make_sidecar(max_event_bytes="65536").start()
    action = sidecar.begin("streaming", {"chunks": 200, "pause": 0, "text": "y" * 60_000})
    sidecar.ended(action)
    request = (
        f"GET /jobs/{action}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    ).encode()
    with contextlib.ExitStack() as opened:
        for _ in range(5):
            wire = opened.enter_context(socket.socket())
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.connect(address(sidecar.url))
            wire.sendall(request)
        until(lambda: number(sidecar, "event_readers") == 5, 10, "five readers")
        begin = time.monotonic()
        assert sidecar.stop() == 0
        assert time.monotonic() - begin < 10
    assert "Traceback" not in sidecar.errors()
    assert "Exception in ASGI" not in sidecar.errors()
