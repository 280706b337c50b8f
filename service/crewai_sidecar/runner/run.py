"""One run, from its slot to its ending.

    queued -> child taken -> `started` durable -> job sent -> result or order to stop -> child gone -> ending durable

The first of result, cancel, timeout and shutdown to be ordered decides how the record ends. The slot is held until the
child is gone and the ending is on disk, whatever the crew does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from crewai_sidecar import frames, transitions
from crewai_sidecar.clock import Clock, timestamp
from crewai_sidecar.errors import NotStored
from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Cause, Ending
from crewai_sidecar.runner import endings
from crewai_sidecar.runner.endings import Order
from crewai_sidecar.runner.launcher import Child, Launcher
from crewai_sidecar.runner.recorder import Recorder
from crewai_sidecar.runner.stopping import LAST_SECONDS, STEP_SECONDS, is_stopped, let_go, stop
from crewai_sidecar.settings import Settings
from crewai_sidecar.store import Store

__all__ = ["DEFAULT_TIMEOUT_MS", "Run", "Surroundings"]

DEFAULT_TIMEOUT_MS = 600_000
"""Milliseconds an operation has when the Action names no timeout."""

_QUIET_SECONDS = 1.0
"""Time without a frame or a commit after which the rest of a child that is gone is given up."""

_LAST_FRAMES_SECONDS = 5.0
"""Time for reading what a child that ended by itself left behind."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every run uses."""

    store: Store
    launcher: Launcher
    settings: Settings
    clock: Clock


class Run:
    """The life of one admitted Action."""

    def __init__(self, around: Surroundings, action_id: str, input_object: dict[str, Any], input_bytes: int) -> None:
        self.action_id = action_id
        self.input_bytes = input_bytes
        self._around = around
        self._input: dict[str, Any] | None = input_object
        entry = around.store.find(action_id)
        if not isinstance(entry, Entry):
            raise TypeError(f"Action {action_id} has no record to run")
        self._entry = entry
        self._events = Recorder(around.store, entry, around.settings)
        self._child: Child | None = None
        self._started = False
        self._decided = False
        self._order: Order | None = None
        self._ordered = asyncio.Event()
        self._result: frames.Result | None = None
        self._late = False

    # -- what others may say to it --------------------------------------------------------------------------------

    def order(self, order: Order) -> None:
        """Order the run to stop; without effect once anything has decided how it ends."""
        if not self._decided:
            self._decided = True
            self._order = order
            self._ordered.set()

    # -- its life -------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run to the ending. Raises nothing: whatever goes wrong is an ending too."""
        try:
            self._child = await self._until_ordered(self._around.launcher.take())
            ending = await self._with_child(self._child) if self._child else self._by_order(None)
        except Exception:  # noqa: BLE001  # a fault of ours must not leave a record without an ending
            _log.exception("a run failed inside the sidecar", extra={"action_id": self.action_id})
            gone = await let_go(self._child) if self._child else None
            ending = endings.worker_lost(started=self._started, gone=gone)
        await self._end(ending)
        if self._child is not None:
            await self._child.exited  # the slot is this run's until the child is gone, even if SIGKILL takes its time

    async def end_unstarted(self) -> None:
        """Write the ending of a run that was ordered to stop while it waited for a slot."""
        await self._end(self._by_order(None))

    async def _with_child(self, child: Child) -> Ending:
        if child.error is not None:
            return endings.unbuilt(child.error, await let_go(child))
        if not await self._start(child):
            return self._by_order(await let_go(child))
        reader = asyncio.create_task(self._read(child), name=f"read {self.action_id}")
        writer = asyncio.create_task(self._events.run(), name=f"write {self.action_id}")
        try:
            return await self._follow(child, reader)
        finally:
            reader.cancel()
            self._events.close()
            await asyncio.wait([reader, writer])

    async def _start(self, child: Child) -> bool:
        """Make `started` durable and hand the job over; False when an order came before the child had its input.

        A `started` that the disk does not take waits, and nothing runs.
        """
        around = self._around
        while not self._ordered.is_set():
            at = timestamp(around.clock.utc())
            try:
                await around.store.commit(transitions.started(self._entry.record, at=at))
                break
            except NotStored:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ordered.wait(), 1.0)
        if self._ordered.is_set():
            return False
        record, training = self._entry.record, around.settings.training_dir
        child.send(
            frames.Job(
                action_id=record.action_id,
                crew_id=record.crew_id,
                operation=record.operation,
                input=self._input or {},
                training_directory=str(training) if training else None,
            )
        )
        self._started, self._input = True, None
        return True

    async def _follow(self, child: Child, reader: asyncio.Task[None]) -> Ending:
        """Wait for the result, an order, or the child's end; return the ending once the child is gone."""
        timeout = (self._entry.record.timeout_ms or DEFAULT_TIMEOUT_MS) / 1000
        timer = asyncio.get_running_loop().call_later(timeout, self.order, Order(Cause.TIMEOUT))
        ordered = asyncio.create_task(self._ordered.wait())
        try:
            first: list[asyncio.Future[Any]] = [reader, ordered, child.exited]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not self._ordered.is_set():
                await self._last_frames(reader, _LAST_FRAMES_SECONDS, patient=True)
        finally:
            timer.cancel()
            ordered.cancel()
        if self._order is not None:
            gone = await stop(child, self._order.cause)
            if gone is not None:
                await self._last_frames(reader, 1.0 - LAST_SECONDS, patient=False)
            return self._by_order(gone)
        self._decided = True
        gone = await let_go(child, STEP_SECONDS if self._result else 0.0)
        if self._result is None:
            return endings.worker_lost(started=self._started, gone=gone)
        return endings.by_result(self._result, gone)

    # -- frames ---------------------------------------------------------------------------------------------------

    async def _read(self, child: Child) -> None:
        """Take the child's frames until its result, its end, or a frame that is none."""
        try:
            async for message in child.frames():
                match message:
                    case frames.Event():
                        await self._events.add(message)
                    case frames.Result():
                        self._take_result(message)
                        return
                    case frames.Ready():
                        pass
        except frames.FrameError:
            _log.warning("a child sent a frame that is none; it is killed", extra={"action_id": self.action_id})
            child.kill()

    def _take_result(self, result: frames.Result) -> None:
        self._events.count(result.events_dropped)
        if self._decided:
            self._late = result.output is not None
        else:
            self._decided = True
            self._result = result

    async def _last_frames(self, reader: asyncio.Task[None], seconds: float, *, patient: bool) -> None:
        """Read what a child that has gone left behind, for some seconds, or longer while a slow disk takes it."""
        deadline = self._around.clock.monotonic() + seconds
        while not reader.done():
            before = self._events.progress
            await asyncio.wait([reader], timeout=min(seconds, _QUIET_SECONDS))
            if self._around.clock.monotonic() > deadline and not (patient and before != self._events.progress):
                return

    # -- endings --------------------------------------------------------------------------------------------------

    def _by_order(self, gone: frames.Exited | None) -> Ending:
        return endings.by_order(
            self._order or Order(Cause.WORKER_LOST),
            started=self._started,
            late=self._late,
            worker_stopped=None if self._child is None else is_stopped(gone),
        )

    async def _end(self, ending: Ending) -> None:
        """Make the ending durable; while the disk does not take it, it is held, and never becomes another one."""
        around = self._around
        record = self._events.last_word()
        update = transitions.ended(
            record,
            self._entry.event_count,
            ending,
            at=timestamp(around.clock.utc()),
            effect_free=transitions.is_effect_free(record, around.settings.effect_free_crews),
        )
        await around.store.hold(update)

    async def _until_ordered(self, coming: Coroutine[Any, Any, Child]) -> Child | None:
        """Wait for something unless an order comes first; None then, and what was waited for is given up."""
        task = asyncio.ensure_future(coming)
        ordered = asyncio.create_task(self._ordered.wait())
        try:
            await asyncio.wait([task, ordered], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ordered.cancel()
        if task.done():
            return task.result()
        task.cancel()
        return None
