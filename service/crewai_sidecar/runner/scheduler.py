"""The queue, the slots, and the one door through which a run starts.

An admitted Action waits here as a plain object; it becomes a task when it has a slot. Inputs live only here, in
memory, until the child has them: what a restart finds accepted but not started cannot be run again, and is fenced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from crewai_sidecar import jsontext
from crewai_sidecar.clock import Clock
from crewai_sidecar.errors import QueueFull
from crewai_sidecar.frames import Crew
from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Cause, Record
from crewai_sidecar.runner.endings import Order
from crewai_sidecar.runner.launcher import Launcher
from crewai_sidecar.runner.run import Run, Surroundings
from crewai_sidecar.settings import Settings
from crewai_sidecar.store import Store

__all__ = ["MAX_WAITING_BYTES", "Scheduler"]

MAX_WAITING_BYTES = 256 << 20
"""Bytes of inputs that may wait for a slot."""

MAX_REASON_BYTES = 2048
"""Bytes, as encoded, that are kept of a cancel's reason: the ending must fit the room that was kept for it."""

MAX_CANCELLED_BY_BYTES = 512
"""Bytes, as encoded, of a cancelling Action's ID that is kept; a longer one is not."""

_log = logging.getLogger(__name__)


class Scheduler:
    """Starts runs in the order of their admission, as many at a time as there are slots."""

    def __init__(
        self,
        store: Store,
        launcher: Launcher,
        settings: Settings,
        clock: Clock,
        observe: Callable[[Record, float], None],
    ) -> None:
        self.draining = False
        self._stopping = False
        self._store = store
        self._launcher = launcher
        self._around = Surroundings(store, launcher, settings, clock)
        self._slots = settings.max_concurrency
        self._max_queued = settings.max_queued
        self._clock = clock
        self._observe = observe
        self._queue: dict[str, Run] = {}
        self._running: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reserved = 0
        self._waiting_bytes = 0

    # -- what admission asks --------------------------------------------------------------------------------------

    @property
    def crews(self) -> Mapping[str, Crew]:
        """The registry, as the first child described it."""
        return self._launcher.crews

    def reserve(self, input_bytes: int) -> None:
        """Take a place in the queue before the disk is asked.

        Raises QueueFull when as many Actions wait as may, or their inputs would take too much memory.
        """
        free = max(0, self._slots - len(self._running) - len(self._queue))
        if len(self._queue) + self._reserved >= self._max_queued + free:
            raise QueueFull(f"{len(self._queue)} Actions wait for a slot already; send it again later.")
        if self._waiting_bytes + input_bytes > MAX_WAITING_BYTES:
            raise QueueFull("The inputs of the waiting Actions take as much memory as they may; send it again later.")
        self._reserved += 1
        self._waiting_bytes += input_bytes

    def release(self, input_bytes: int) -> None:
        """Give a place back: the admission was not stored."""
        self._reserved -= 1
        self._waiting_bytes -= input_bytes

    def schedule(self, action_id: str, input_object: dict[str, Any], input_bytes: int) -> None:
        """Queue a durable record, in the place that was reserved for it."""
        self._reserved -= 1
        self._queue[action_id] = Run(self._around, action_id, input_object, input_bytes)
        if self._stopping:  # its admission was on the way to disk when the service began to stop
            self._order(action_id, Order(Cause.SHUTDOWN))
        self._dispatch()

    # -- what the routes ask --------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Runs that have a slot."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Admitted Actions that wait for one."""
        return len(self._queue)

    @property
    def worker(self) -> str:
        """`ready`, or `restarting` while there is no fork server."""
        return self._launcher.state

    def cancel(self, action_id: str, *, reason: str | None, cancelled_by: str | None) -> None:
        """Order a run to stop. Without effect where it has ended or something else has decided already."""
        if cancelled_by is not None and jsontext.length(cancelled_by) > MAX_CANCELLED_BY_BYTES:
            cancelled_by = None  # half an id would name another Action
        self._order(action_id, Order(Cause.CANCELLED, _fitting(reason), cancelled_by))

    def drain(self) -> None:
        """Refuse new Actions from now on."""
        self.draining = True

    async def drained(self, seconds: float) -> None:
        """Wait until nothing is queued or running, `seconds` at most."""
        deadline = self._clock.monotonic() + seconds
        while self._tasks and (left := deadline - self._clock.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)  # what waited for a slot has one now: look again

    async def shutdown(self, seconds: float) -> bool:
        """Stop what is queued and running, and wait for the endings; False when one is still held by the disk."""
        self.draining = self._stopping = True
        for action_id in [*self._queue, *self._running]:
            self._order(action_id, Order(Cause.SHUTDOWN))
        await self.drained(seconds)
        return not self._store.ledger.running

    # -- inside ---------------------------------------------------------------------------------------------------

    def _order(self, action_id: str, order: Order) -> None:
        run = self._queue.pop(action_id, None)
        if run is not None:
            run.order(order)
            self._waiting_bytes -= run.input_bytes
            self._task(run, self._leave(run))
        elif action_id in self._running:
            self._running[action_id].order(order)

    def _dispatch(self) -> None:
        while self._queue and len(self._running) < self._slots:
            action_id = next(iter(self._queue))
            run = self._running[action_id] = self._queue.pop(action_id)
            self._waiting_bytes -= run.input_bytes
            self._task(run, self._live(run))

    def _task(self, run: Run, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"run {run.action_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self, run: Run) -> None:
        begin = self._clock.monotonic()
        try:
            await run.live()
        finally:
            del self._running[run.action_id]
            self._dispatch()
        self._report(run, self._clock.monotonic() - begin)

    async def _leave(self, run: Run) -> None:
        await run.end_unstarted()
        self._report(run, 0.0)

    def _report(self, run: Run, seconds: float) -> None:
        entry = self._store.find(run.action_id)
        if isinstance(entry, Entry):
            record = entry.record
            _log.info(
                "run ended",
                extra={
                    "action_id": record.action_id,
                    "crew_id": record.crew_id,
                    "operation": record.operation,
                    "status": record.status,
                    "cause": record.cause,
                    "error_type": record.error_type,
                    "to_be_reconciled": record.to_be_reconciled,
                    "seconds": round(seconds, 3),
                },
            )
            self._observe(record, seconds)


def _fitting(reason: str | None) -> str | None:
    """Cut a reason to what is kept of it."""
    while reason and jsontext.length(reason) > MAX_REASON_BYTES:
        reason = reason[: len(reason) * MAX_REASON_BYTES // jsontext.length(reason)]
    return reason
