"""A sidecar of its own for the demo: in a temporary directory, on free ports, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import click

from crewai_sidecar.connector import Sidecar, token_from_file

__all__ = ["READY", "NotStarted", "Stage", "ends_like_ctrl_c"]

READY = re.compile(
    r"crewai-sidecar ready: contract (?P<contract>\S+) management (?P<management>\S+) journal (?P<journal>.+)"
)
"""The one line that `serve` writes to stdout."""

START_SECONDS = 120.0
"""The first start of a fresh installation compiles a few thousand modules."""

STOP_SECONDS = 15.0

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

EFFECTS_VARIABLE = "CREWAI_SIDECAR_DEMO_EFFECTS"
"""As in demo.crew, which this process must not import: it loads crewai."""


class NotStarted(Exception):
    """Raised where `serve` ended, or said nothing in time; the text has the last lines of its log."""


class Stage:
    """The directory, and the one service process that runs in it at a time."""

    def __init__(self, *, keep: bool) -> None:
        self._keep = keep
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.directory = Path(tempfile.mkdtemp(prefix="crewai-sidecar-demo-"))
        self.token_file = self.directory / "token"
        self.log = self.directory / "service.log"
        self.effects = self.directory / "effects"
        self.journal = self.directory / "journal" / "runs.json"

    def __enter__(self) -> Self:
        self.token_file.touch(mode=0o600, exist_ok=False)
        self.token_file.write_text(secrets.token_urlsafe(32), "utf-8")
        self.journal.parent.mkdir(mode=0o700)
        (self.directory / "runs").mkdir(mode=0o700)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave the service and the directory behind; the stop has a bound of its own.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING_SIGNALS}
        try:
            if error is not None:
                with contextlib.suppress(OSError):  # its reader has gone
                    click.echo("stopping …", err=True)
            self.stop()
            if not self._keep:
                shutil.rmtree(self.directory)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def start(self) -> None:
        """Start `crewai-sidecar serve` and wait until it is ready.

        Raises NotStarted.
        """
        with self.log.open("ab") as log:
            process = subprocess.Popen(  # this interpreter, this package
                [sys.executable, "-m", "crewai_sidecar", "serve"],
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is the demo's; it ends the service in order
            )
        self._process = process
        assert process.stdout is not None  # noqa: S101  # it was asked for
        line = _first_line(process.stdout, START_SECONDS)
        ready = READY.fullmatch(line)
        if ready is None:
            self.stop()
            raise NotStarted(f"the service did not start; its log ends with:\n{self._log_end()}")
        self.url = ready["contract"]

    def kill(self) -> None:
        """End the service with SIGKILL: it learns nothing of it and can write nothing down."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def stop(self) -> None:
        """End the service in order, and by force where that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap()

    def connect(self) -> Sidecar:
        """Make a connector to the service."""
        return Sidecar(self.url, token=token_from_file(self.token_file))

    @property
    def pid(self) -> int:
        """Process id of the service, 0 without one."""
        return 0 if self._process is None else self._process.pid

    def effects_count(self) -> int:
        """How often the crew's tool was used, by the traces that it left."""
        return len(self.effects.read_text("utf-8").splitlines()) if self.effects.exists() else 0

    def wait_for_an_effect(self, seconds: float = 10.0) -> bool:
        """Wait until the tool has left its first trace."""
        end = time.monotonic() + seconds
        while not self.effects_count():
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIP_CREWAI_")}
        return inherited | {
            "AIP_CREWAI_HOST": "127.0.0.1",
            "AIP_CREWAI_PORT": "0",
            "AIP_CREWAI_MANAGEMENT_HOST": "127.0.0.1",
            "AIP_CREWAI_MANAGEMENT_PORT": "0",
            "AIP_CREWAI_REGISTRY": "crewai_sidecar.demo:crews",
            "AIP_CREWAI_BEARER_TOKEN_FILE": str(self.token_file),
            "AIP_CREWAI_STATE_FILE": str(self.journal),
            "AIP_CREWAI_RUN_DIR": str(self.directory / "runs"),
            "AIP_CREWAI_DRAIN_SECONDS": "1",
            "CREWAI_STORAGE_DIR": str(self.directory / "storage"),
            EFFECTS_VARIABLE: str(self.effects),
        }

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def _log_end(self) -> str:
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-10:])


def _first_line(stream: IO[bytes], seconds: float) -> str:
    """Read one line from a pipe; an empty text where none comes in time."""
    text = bytearray()
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not text.endswith(b"\n"):
            if not selector.select(max(0.0, end - time.monotonic())):
                break
            piece = os.read(stream.fileno(), 1)
            if not piece:
                break
            text += piece
    return text.decode("utf-8", "replace").strip()


def ends_like_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does, so that its service and directory go too."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
