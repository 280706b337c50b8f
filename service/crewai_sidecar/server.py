"""The service process: two listeners in one event loop, and the orders of its start and its end.

Sockets are bound before anything else is made, so that a port in use is a sentence and not an exit from inside a task.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import hashlib
import logging
import os
import secrets
import signal
import stat
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from crewai_sidecar.admission import Admission
from crewai_sidecar.api.auth import read_token
from crewai_sidecar.app import create_contract_app, create_management_app
from crewai_sidecar.clock import SystemClock
from crewai_sidecar.errors import JournalOverBound, SettingRefused
from crewai_sidecar.frames import Configure, Exited, Forked
from crewai_sidecar.journal import Opened, memory_journal, open_journal
from crewai_sidecar.listeners import Listener, bind, contract_limits, management_limits
from crewai_sidecar.runner import process_tree
from crewai_sidecar.runner.launcher import Launcher
from crewai_sidecar.runner.scheduler import Scheduler
from crewai_sidecar.settings import PREFIX, Settings, unknown_variables
from crewai_sidecar.store import Deliver, Store
from crewai_sidecar.telemetry.logs import configure_logging
from crewai_sidecar.telemetry.metrics import Metrics

__all__ = ["serve"]

STOP_SECONDS = 6.0
"""Time for the three steps of stopping and the endings of what still runs when the drain time is over."""

MAX_OUTPUT_BYTES = 4_194_304
"""Bytes of one output in a record."""

_log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Run the service until SIGTERM or SIGINT, then end the process with exit code 0.

    Raises StartRefused, with one line for the operator, when the service must not start; nothing is left behind then.
    """
    _hold_standard_streams()
    configure_logging(settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Service(settings).run())
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # its reader has gone
            stream.flush()
    os._exit(0)  # a handler that swallows its cancellation would keep the interpreter waiting for ever


def _hold_standard_streams() -> None:
    """Open the null device where a standard stream is closed, before a socket gets its number and its output."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free, which is this one
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


class _Service:
    """What `serve` starts, in order, and ends in the opposite one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._clock = SystemClock()
        self._state = "starting"
        self._scheduler: Scheduler | None = None
        self._closing = asyncio.Event()
        self._terminated = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):  # first of all: as PID 1 a signal without a handler is ignored
            loop.add_signal_handler(number, self._terminated.set)
        settings = self._settings
        token = read_token(settings)
        if settings.run_dir is not None and not settings.run_dir.is_dir():
            raise SettingRefused(PREFIX + "RUN_DIR", f"{settings.run_dir} is not a directory")
        if settings.training_dir is not None:
            _prepare_training_directory(settings.training_dir)
        contract_socket = bind(settings.host, settings.port, "PORT")
        management_socket = bind(settings.management_host, settings.management_port, "MANAGEMENT_PORT")
        management = Listener(
            create_management_app(self._metrics, state=self._readiness),
            management_socket,
            "management",
            management_limits(),
            functools.partial(self._metrics.connection_refused, "management"),
        )
        deliver = Deliver(loop)
        async with contextlib.AsyncExitStack() as ends:
            ends.push_async_callback(management.close)  # the last to go: it tells the cluster how far the end has come
            opened = await asyncio.to_thread(self._open, deliver)
            ends.push_async_callback(asyncio.to_thread, opened.journal.close)
            store = Store(opened.journal, deliver, settings, self._clock)
            await management.up()
            claim = await self._claim(store.journal_id)
            marker = claim.marker if claim else secrets.token_hex(16)
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
                run_root=_run_root(settings, marker),
                warm=settings.warm_children,
                marker=marker,
                inherit_fd=claim.descriptor if claim else None,
                observer=self._count_child,
                process_one=os.getpid() == 1,
            )
            if not await self._unless_terminated(starting):
                return
            scheduler = self._scheduler = Scheduler(store, launcher, settings, self._clock, self._metrics.ended)
            admission = Admission(store, scheduler, settings, self._clock)
            contract = Listener(
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
                contract_limits(),
                functools.partial(self._metrics.connection_refused, "contract"),
            )
            ends.push_async_callback(contract.close)
            await contract.up()
            gc.freeze()  # what the start has made lives as long as the process; no collection needs to go through it
            self._state = "ready"
            self._announce(contract, management)
            self._warn(scheduler)
            await self._terminated.wait()
            await self._drain(scheduler)

    def _readiness(self) -> str:
        """starting, ready, or draining, also by the drain route."""
        return "draining" if self._scheduler is not None and self._scheduler.draining else self._state

    def _warn(self, scheduler: Scheduler) -> None:
        """Say what is set up in a way that can hardly be meant."""
        for name in unknown_variables(os.environ):
            _log.warning("%s is not a setting", name)
        for crew_id in self._settings.effect_free_crews:
            if crew_id not in scheduler.crews:
                _log.warning("AIP_CREWAI_EFFECT_FREE_CREWS names %r, and the registry has no such crew", crew_id)

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

    async def _claim(self, journal_id: str) -> process_tree.Claim | None:
        state_file = self._settings.state_file
        if state_file is None:
            return None
        return await asyncio.to_thread(
            process_tree.claim, state_file.with_name(state_file.name + ".workers"), journal_id
        )

    def _count_child(self, message: Forked | Exited) -> None:
        ended = "exited" if isinstance(message, Exited) and message.code >= 0 else "killed"
        self._metrics.child("forked" if isinstance(message, Forked) else ended)

    def _announce(self, contract: Listener, management: Listener) -> None:
        place = self._settings.state_file or "none (nothing survives this process)"
        try:
            print(  # noqa: T201  # the one line on standard output, for whoever started the process
                f"crewai-sidecar ready: contract {contract.url} management {management.url} journal {place}", flush=True
            )
        except OSError as error:  # whoever started the process does not read it
            _log.warning("the ready line could not be written", extra={"reason": str(error)})
        _log.info("ready", extra={"contract": contract.url, "management": management.url, "journal": str(place)})

    async def _drain(self, scheduler: Scheduler) -> None:
        """Let running Actions end, stop the rest, and let their readers see the endings."""
        _log.info(
            "draining: up to %g s for what runs and waits",
            self._settings.drain_seconds,
            extra={"active": scheduler.active, "queued": scheduler.queued},
        )
        scheduler.drain()
        await scheduler.drained(self._settings.drain_seconds)
        if not await scheduler.shutdown(STOP_SECONDS):
            _log.error("an ending is held by the disk; the next start fences its Action")
        self._closing.set()


def _prepare_training_directory(path: Path) -> None:
    """Check the directory of trained artefacts, or make it, 0700, where only its last component is missing.

    Raises SettingRefused.
    """
    name = PREFIX + "TRAINING_DIR"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise SettingRefused(name, f"{path} cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise SettingRefused(name, f"{path} must be a real directory that only its owner can write: chmod go-w it")


def _run_root(settings: Settings, marker: str) -> Path:
    """Name the parent of the per-run directories: one for each journal, so that a start finds what a crash left.

    Raises SettingRefused for a place inside the journal's directory, which holds nothing else.
    """
    parent = settings.run_dir or Path(tempfile.gettempdir())
    root = parent / f"crewai-sidecar-{hashlib.sha256(marker.encode()).hexdigest()[:16]}"
    if settings.state_file is not None and root.is_relative_to(settings.state_file.parent):
        raise SettingRefused(
            PREFIX + "RUN_DIR", f"{parent} must not be inside the journal's directory {settings.state_file.parent}"
        )
    return root
