"""The service process: two listeners in one event loop, and the orders of its start and its end.

uvicorn's own signal handling and lifespan are off: its listener would close on the first SIGTERM, while running
Actions still have readers, and it would raise the signal again at the end. Sockets are bound here, so that a port in
use is a sentence and not an exit from inside a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from crewai_sidecar.admission import Admission
from crewai_sidecar.api.auth import read_token
from crewai_sidecar.app import create_contract_app, create_management_app
from crewai_sidecar.clock import SystemClock
from crewai_sidecar.errors import JournalOverBound, SettingRefused, StartRefused
from crewai_sidecar.frames import Configure, Exited, Forked
from crewai_sidecar.journal import Opened, memory_journal, open_journal
from crewai_sidecar.runner import process_tree
from crewai_sidecar.runner.launcher import Launcher
from crewai_sidecar.runner.scheduler import Scheduler
from crewai_sidecar.settings import PREFIX, Settings
from crewai_sidecar.store import Deliver, Store
from crewai_sidecar.telemetry.logs import configure_logging
from crewai_sidecar.telemetry.metrics import Metrics

__all__ = ["serve"]

STOP_SECONDS = 6.0
"""Time for the three steps of stopping and the endings of what still runs when the drain time is over."""

CLOSE_SECONDS = 2
"""Time that open responses have to end after the last ending is published."""

MAX_OUTPUT_BYTES = 4_194_304
"""Bytes of one output in a record."""

_log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Run the service until SIGTERM or SIGINT, then end the process with exit code 0.

    Raises StartRefused, with one line for the operator, when the service must not start; nothing is left behind then.
    """
    configure_logging(settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Service(settings).run())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a handler that swallows its cancellation would keep the interpreter waiting for ever


class _Service:
    """What `serve` starts, in order, and ends in the opposite one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._clock = SystemClock()
        self._state = "starting"
        self._closing = asyncio.Event()
        self._terminated = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):  # first of all: as PID 1 a signal without a handler is ignored
            loop.add_signal_handler(number, self._terminated.set)
        settings = self._settings
        token = read_token(settings)
        contract_socket = _bind(settings.host, settings.port, "PORT")
        management_socket = _bind(settings.management_host, settings.management_port, "MANAGEMENT_PORT")
        management = _Listener(
            create_management_app(self._metrics, state=lambda: self._state), management_socket, "management"
        )
        deliver = Deliver(loop)
        async with contextlib.AsyncExitStack() as ends:
            ends.push_async_callback(management.close)  # the last to go: it tells the cluster how far the end has come
            opened = await asyncio.to_thread(self._open, deliver)
            ends.push_async_callback(asyncio.to_thread, opened.journal.close)
            store = Store(opened.journal, deliver, settings, self._clock)
            await management.up()
            workers_lock = await self._claim(store.journal_id)
            await asyncio.to_thread(store.restore, opened.lines)
            del opened
            store.resume()
            self._metrics.fenced(store.fenced, store.fenced_to_be_reconciled)
            launcher = Launcher()
            ends.push_async_callback(launcher.close)
            starting = launcher.start(
                Configure(
                    registry=settings.registry,
                    start_directory=str(Path.cwd()),
                    max_event_bytes=settings.max_event_bytes,
                    max_output_bytes=MAX_OUTPUT_BYTES,
                ),
                run_root=_run_root(settings, store.journal_id),
                warm=settings.warm_children,
                journal_id=store.journal_id,
                inherit_fd=workers_lock,
                observer=self._count_child,
            )
            if not await self._unless_terminated(starting):
                return
            scheduler = Scheduler(store, launcher, settings, self._clock, self._metrics.ended)
            admission = Admission(store, scheduler, settings, self._clock)
            contract = _Listener(
                create_contract_app(
                    store=store,
                    admission=admission,
                    scheduler=scheduler,
                    settings=settings,
                    token=token,
                    metrics=self._metrics,
                    closing=self._closing,
                ),
                contract_socket,
                "contract",
            )
            ends.push_async_callback(contract.close)
            await contract.up()
            self._state = "ready"
            self._announce(contract, management)
            await self._terminated.wait()
            await self._drain(scheduler)

    async def _unless_terminated(self, coming: Coroutine[Any, Any, None]) -> bool:
        """Wait for a step of the start; False when the process was told to end meanwhile."""
        step, ended = asyncio.create_task(coming), asyncio.create_task(self._terminated.wait())
        try:
            await asyncio.wait([step, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if step.done():
            await step
            return True
        step.cancel()
        await asyncio.wait([step])
        return False

    def _open(self, deliver: Deliver) -> Opened:
        settings = self._settings
        if settings.state_file is None:
            return memory_journal(deliver)
        try:
            return open_journal(
                settings.state_file, max_bytes=settings.max_state_bytes, settled=deliver, observer=self._metrics
            )
        except JournalOverBound as error:
            raise SettingRefused(
                PREFIX + "MAX_STATE_BYTES", f"{settings.state_file} is larger; it must be {error.least} at least"
            ) from None

    async def _claim(self, journal_id: str) -> int | None:
        state_file = self._settings.state_file
        if state_file is None:
            return None
        return await asyncio.to_thread(
            process_tree.claim, state_file.with_name(state_file.name + ".workers"), journal_id
        )

    def _count_child(self, message: Forked | Exited) -> None:
        ended = "exited" if isinstance(message, Exited) and message.code >= 0 else "killed"
        self._metrics.child("forked" if isinstance(message, Forked) else ended)

    def _announce(self, contract: _Listener, management: _Listener) -> None:
        place = self._settings.state_file or "none (nothing survives this process)"
        print(  # noqa: T201  # the one line on standard output, for whoever started the process
            f"crewai-sidecar ready: contract {contract.url} management {management.url} journal {place}", flush=True
        )
        _log.info("ready", extra={"contract": contract.url, "management": management.url, "journal": str(place)})

    async def _drain(self, scheduler: Scheduler) -> None:
        """Let running Actions end, stop the rest, and let their readers see the endings."""
        self._state = "draining"
        _log.info("draining", extra={"active": scheduler.active, "queued": scheduler.queued})
        scheduler.drain()
        await scheduler.drained(self._settings.drain_seconds)
        if not await scheduler.shutdown(STOP_SECONDS):
            _log.error("an ending is held by the disk; the next start fences its Action")
        self._closing.set()


def _run_root(settings: Settings, journal_id: str) -> Path:
    """Name the parent of the per-run directories: one for each journal, so that a start finds what a crash left.

    Raises SettingRefused for a place inside the journal's directory, which holds nothing else.
    """
    parent = settings.run_dir or Path(tempfile.gettempdir())
    root = parent / f"crewai-sidecar-{journal_id[:16] if settings.durable else secrets.token_hex(8)}"
    if settings.state_file is not None and root.is_relative_to(settings.state_file.parent):
        raise SettingRefused(
            PREFIX + "RUN_DIR", f"{parent} must not be inside the journal's directory {settings.state_file.parent}"
        )
    return root


def _bind(host: str, port: int, variable: str) -> socket.socket:
    """Bind a listening socket; `::` takes IPv4 as well, and falls back to it where the kernel has no IPv6.

    Raises SettingRefused with the address and the reason.
    """
    try:
        return _listening(host, port)
    except OSError as error:
        if host == "::" and not socket.has_dualstack_ipv6():
            return _bind("0.0.0.0", port, variable)  # noqa: S104  # the documented default: every address
        raise SettingRefused(
            PREFIX + variable, f"{host} port {port} cannot be bound: {error.strerror or error}"
        ) from None


def _listening(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


class _Listener:
    """One uvicorn server on a socket of ours."""

    def __init__(self, app: Any, listener: socket.socket, name: str) -> None:
        self._socket = listener
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                http="httptools",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=CLOSE_SECONDS,
                timeout_keep_alive=75,
            )
        )
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def up(self) -> None:
        """Serve, and return when the first connection would be answered."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name=f"{self._name} listener")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise StartRefused(f"The {self._name} listener ended while it started.")
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Refuse new connections, let open responses end for a while, and return."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS + 1)
        self._socket.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: they belong to the service."""
        yield
