"""A real sidecar in a process of its own, spoken to by the wire and by signals alone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx

HERE = Path(__file__).parent
TOKEN = "a-token-for-tests"

START_SECONDS = 60.0


def until(condition: Callable[[], Any], seconds: float = 15.0, what: str = "the condition") -> Any:
    """Wait for something that only another process can say; fail with what it was."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.01)


class Sidecar:
    """Starts, speaks to, and ends one service process on a directory."""

    start_directory = HERE
    """Where it is started: the first place in which its registry is looked for."""

    prefix: tuple[str, ...] = ()
    """What the command is started with, such as a namespace."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.state_file = directory / "state" / "runs.json"
        self.effects = directory / "effects"
        self.effects.touch()
        self.log = directory / "stderr.log"
        (directory / "run").mkdir(exist_ok=True)
        self.settings = {
            "AIP_CREWAI_HOST": "127.0.0.1",
            "AIP_CREWAI_PORT": "0",
            "AIP_CREWAI_MANAGEMENT_HOST": "127.0.0.1",
            "AIP_CREWAI_MANAGEMENT_PORT": "0",
            "AIP_CREWAI_REGISTRY": "duck_crews:crews",
            "AIP_CREWAI_BEARER_TOKEN": TOKEN,
            "AIP_CREWAI_STATE_FILE": str(self.state_file),
            "AIP_CREWAI_RUN_DIR": str(directory / "run"),
            "AIP_CREWAI_ALLOWED_OPERATIONS": "run,batch_run,replay,train,test,knowledge_query,memory_reset",
            "AIP_CREWAI_TRAINING_DIR": str(directory / "training"),
            "AIP_CREWAI_DRAIN_SECONDS": "0.2",
            **{f"AIP_CREWAI_{name.upper()}": value for name, value in settings.items()},
        }
        self.process: subprocess.Popen[str] | None = None
        self.url = self.management_url = ""

    # -- its life -------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start, and wait for the ready line."""
        if self.process is not None:  # it has ended by itself
            self._end(signal.SIGKILL)
        self.process = self._spawn()
        line = self._line()
        if not line.startswith("crewai-sidecar ready: "):
            self.process.wait(10)
            raise AssertionError(f"no ready line but {line!r}; exit code {self.process.returncode}\n{self.errors()}")
        words = line.split()
        self.url = words[words.index("contract") + 1]
        self.management_url = words[words.index("management") + 1]
        return self

    def refused(self) -> tuple[int, str]:
        """Start and expect a refusal: the exit code and what it said on standard error."""
        process = self._spawn()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
        return process.returncode, self.errors()

    def _spawn(self) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AIP_CREWAI_")}
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "crewai_sidecar", "serve"],
                env={**environment, **{k: v for k, v in self.settings.items() if v is not None}},
                cwd=self.start_directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _line(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_SECONDS)
        return self.process.stdout.readline() if ready else ""

    def errors(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, as a node that loses power would."""
        self._end(signal.SIGKILL)

    def stop(self, seconds: float = 30.0) -> int:
        """SIGTERM, and the exit code."""
        return self._end(signal.SIGTERM, seconds)

    def _end(self, number: int, seconds: float = 30.0) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            return process.wait(seconds)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def restart(self) -> Self:
        """SIGKILL, and a start on the same directory."""
        self.kill()
        return self.start()

    # -- speaking to it -------------------------------------------------------------------------------------------

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {TOKEN}", **options.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, timeout=options.pop("timeout", 30.0), **options)

    def submit(
        self,
        crew: str,
        value: dict[str, Any] | None = None,
        *,
        action_id: str | None = None,
        key: str | None = None,
        wait: bool = True,
        path: str = "/jobs",
        **fields: Any,
    ) -> httpx.Response:
        """Send a start; its Action ID is also its key unless another is given."""
        action_id = action_id or f"act_{uuid.uuid4().hex}"
        headers = {"Idempotency-Key": key or action_id} | ({} if wait else {"Prefer": "respond-async"})
        body = {"crew_id": crew, "action_id": action_id, "input": self.with_effects(value), **fields}
        return self.request("POST", path, json=body, headers=headers)

    def begin(self, crew: str, value: dict[str, Any] | None = None, **options: Any) -> str:
        """Admit an Action without waiting for it; its id."""
        response = self.submit(crew, value, wait=False, **options)
        assert response.status_code == 202, response.text
        return str(response.json()["action_id"])

    def with_effects(self, value: dict[str, Any] | None) -> dict[str, Any]:
        return {"effects": str(self.effects), **(value or {})}

    def record(self, action_id: str) -> dict[str, Any]:
        response = self.request("GET", f"/jobs/{action_id}")
        assert response.status_code == 200, response.text
        return dict(response.json())

    def ended(self, action_id: str, seconds: float = 20.0) -> dict[str, Any]:
        """Wait for the ending of an Action."""

        def ended() -> dict[str, Any] | None:
            record = self.record(action_id)
            return record if record["status"] != "running" else None

        return dict(until(ended, seconds, f"the ending of {action_id}"))

    def events(self, action_id: str, cursor: int = 0) -> list[dict[str, Any]]:
        response = self.request("GET", f"/jobs/{action_id}/events", params={"cursor": cursor})
        assert response.status_code == 200, response.text
        return list(response.json()["events"])

    def cancel(self, action_id: str, crew: str, **fields: Any) -> httpx.Response:
        body = {"crew_id": crew, "action_id": action_id, **fields}
        return self.request("POST", f"/jobs/{action_id}/cancel", json=body)

    def happened(self, mark: str) -> int:
        """How often an effect was made."""
        return self.effects.read_text().splitlines().count(mark)

    def wait_for_effect(self, mark: str, seconds: float = 20.0) -> None:
        until(lambda: self.happened(mark), seconds, f"the effect {mark}")


def family(pid: int) -> set[int]:
    """A process and all that descend from it, zombies left out."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found = {pid} & set(parents)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def alive(pids: set[int]) -> set[int]:
    """Those of the processes that still run; a pid that was given away again does not count here, tests are short."""
    left = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            left.add(pid)
    return left


def until_gone(pids: set[int], seconds: float = 5.0) -> None:
    """Wait until none of the processes is left."""
    until(lambda: not alive(pids), seconds, f"the end of every process of {sorted(pids)}")
