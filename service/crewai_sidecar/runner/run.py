"""One run, from its slot to its ending.

    queued -> child taken -> `started` durable -> job sent -> result or order to stop -> child gone -> ending durable

The first of result, cancel, timeout and shutdown to be ordered decides how the record ends. The slot is
held until the child is gone and the ending is on disk, whatever the crew does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from dataclasses import dataclass
from typing import Any

from crewai_sidecar import frames, jsontext, transitions
from crewai_sidecar.clock import Clock, timestamp
from crewai_sidecar.errors import NotStored
from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Cause, Ending, Record, Status
from crewai_sidecar.runner.batching import Pending
from crewai_sidecar.runner.launcher import Child, Launcher
from crewai_sidecar.settings import Settings
from crewai_sidecar.store import Store

__all__ = ["DEFAULT_TIMEOUT_MS", "Order", "Run", "Surroundings"]

DEFAULT_TIMEOUT_MS = 600_000
"""Milliseconds an operation has when the Action names no timeout."""

STEP_SECONDS = 2.0
"""Time for each of the three steps of stopping: ask, SIGTERM, SIGKILL (facts: all gone within 4.02 s)."""

LAST_SECONDS = 0.9
"""Time after SIGKILL; with it the ending is written at most 5 s after the order."""

_QUIET_SECONDS = 1.0
"""Time without a frame or a commit after which the rest of a child that is gone is given up."""

_RETRY_SECONDS = 0.5
"""Time after which events that the disk did not take are tried once more."""

_LAST_FRAMES_SECONDS = 5.0
"""Time for reading what a child that ended by itself left behind."""

_BACKLOG_BYTES = 1 << 20
"""Text that may wait for the disk before the child's socket is paused."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """An order to stop. The first one of a run counts."""

    cause: Cause
    reason: str | None = None
    by: str | None = None


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
        self._order: Order | None = None
        self._decided = False
        self._ordered = asyncio.Event()
        self._result: frames.Result | None = None
        self._late = False
        self._child: Child | None = None
        self._started = False
        self._closing = False
        self._progress = 0
        settings = around.settings
        self._pending = Pending(
            max_events=settings.max_events_per_run,
            max_event_bytes=settings.max_event_bytes,
            most=settings.stream_checkpoint_events,
        )
        self._news = asyncio.Event()
        self._taken = asyncio.Event()

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
            ending = await self._with_child(self._child) if self._child else self._stopped_ending(None)
        except Exception:  # noqa: BLE001  # a fault of ours must not leave a record without an ending
            _log.exception("a run failed inside the sidecar", extra={"action_id": self.action_id})
            ending = _lost(self._started, await _gone(self._child) if self._child else None)
        await self._end(ending)
        if self._child is not None:
            await self._child.exited  # the slot is this run's until the child is gone, even if SIGKILL takes its time

    async def end_unstarted(self) -> None:
        """Write the ending of a run that was ordered to stop while it waited for a slot."""
        await self._end(self._stopped_ending(None))

    async def _with_child(self, child: Child) -> Ending:
        if child.error is not None:
            return await self._unbuilt(child)
        if not await self._start(child):
            return self._stopped_ending(await _gone(child))
        reader = asyncio.create_task(self._read(child), name=f"read {self.action_id}")
        writer = asyncio.create_task(self._write(), name=f"write {self.action_id}")
        try:
            return await self._follow(child, reader)
        finally:
            reader.cancel()
            self._closing = True
            self._news.set()
            await asyncio.wait([reader, writer])  # never cancelled: the next sequence depends on what it has in flight

    async def _start(self, child: Child) -> bool:
        """Make `started` durable and hand the job over; False when an order came before the child had its input."""
        around = self._around
        while not self._ordered.is_set():
            at = timestamp(around.clock.utc())
            try:
                await around.store.commit(transitions.started(self._record, at=at))
            except NotStored:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ordered.wait(), 1.0)
                continue
            break
        if self._ordered.is_set():
            return False
        record = self._record
        training = around.settings.training_dir
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
        timeout = (self._record.timeout_ms or DEFAULT_TIMEOUT_MS) / 1000
        timer = asyncio.get_running_loop().call_later(timeout, self.order, Order(Cause.TIMEOUT))
        ordered = asyncio.create_task(self._ordered.wait())
        try:
            first: list[asyncio.Future[Any]] = [reader, ordered, child.exited]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not self._ordered.is_set():
                await self._last_frames(reader, _LAST_FRAMES_SECONDS)
        finally:
            timer.cancel()
            ordered.cancel()
        if self._ordered.is_set():
            gone = await self._stop(child)
            if gone is not None:
                await self._last_frames(reader, 1.0 - LAST_SECONDS, patient=False)
            return self._stopped_ending(gone)
        self._decided = True
        gone = await _gone(child, patience=STEP_SECONDS if self._result else 0.0)
        if self._result is None:
            return _lost(self._started, gone)
        return _result_ending(self._result, gone)

    async def _last_frames(self, reader: asyncio.Task[None], seconds: float, *, patient: bool = True) -> None:
        """Read what a child that has gone left behind, for some seconds, or longer while a slow disk takes it."""
        deadline = self._around.clock.monotonic() + seconds
        while not reader.done():
            before = self._progress
            await asyncio.wait([reader], timeout=min(seconds, _QUIET_SECONDS))
            if self._around.clock.monotonic() > deadline and not (patient and before != self._progress):
                return

    async def _stop(self, child: Child) -> frames.Exited | None:
        """Stop in three steps; None when the child is not gone after the last."""
        child.send(frames.Stop(reason=self._order.cause if self._order else "cancelled"))
        if await _exited(child, STEP_SECONDS):
            return child.exited.result()
        child.terminate()
        if await _exited(child, STEP_SECONDS):
            return child.exited.result()
        child.kill()
        return child.exited.result() if await _exited(child, LAST_SECONDS) else None

    async def _unbuilt(self, child: Child) -> Ending:
        """The child could not import the registry: nothing of the provider's has run."""
        gone = await _gone(child)
        name = (child.error or "").partition(":")[0]
        if name == "WorkerLost":
            return _lost(started=False, gone=gone)
        return Ending(
            status=Status.FAILED,
            cause=Cause.EXCEPTION,
            provider_started=False,
            error_type=name if name.isidentifier() else "RegistryRefused",
            worker_stopped=_stopped(gone),
        )

    # -- frames ---------------------------------------------------------------------------------------------------

    async def _read(self, child: Child) -> None:
        """Take the child's frames until its result, its end, or a frame that is none."""
        try:
            async for message in child.frames():
                self._progress += 1
                match message:
                    case frames.Event():
                        self._pending.add(message)
                        self._news.set()
                        while self._pending.size > _BACKLOG_BYTES:
                            self._taken.clear()
                            await self._taken.wait()
                    case frames.Result():
                        self._take_result(message)
                        return
                    case frames.Ready():
                        pass
        except frames.FrameError:
            _log.warning("a child sent a frame that is none; it is killed", extra={"action_id": self.action_id})
            child.kill()

    def _take_result(self, result: frames.Result) -> None:
        self._pending.count(result.events_dropped)
        if self._decided:
            self._late = result.output is not None
        else:
            self._decided = True
            self._result = result

    async def _write(self) -> None:
        """Commit events as they come, one commit in flight at a time, until the run is closing and all is taken."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._pending and await self._flush():
                pass
            if self._closing:
                return

    async def _flush(self) -> bool:
        """Commit one batch; False when the disk does not take it, twice: the run goes on without its events."""
        entry = self._entry
        batch = self._pending.take(entry.event_count)
        update = transitions.extended(entry.record, batch.events, batch.evidence, batch.dropped)
        for pause in (_RETRY_SECONDS, None):
            try:
                await self._around.store.commit(update)
            except NotStored:
                if pause is not None and not self._closing:
                    await asyncio.sleep(pause)  # the child is paused meanwhile, if it says much
                    continue
                self._pending.give_up(batch)
                return False
            else:
                self._progress += 1
                return True
            finally:
                self._taken.set()
        return False

    # -- endings --------------------------------------------------------------------------------------------------

    def _stopped_ending(self, gone: frames.Exited | None) -> Ending:
        order = self._order or Order(Cause.WORKER_LOST)
        timed_out = order.cause is Cause.TIMEOUT
        return Ending(
            status=Status.FAILED if timed_out else Status.CANCELLED,
            cause=order.cause,
            provider_started=self._started,
            error_type="TimeoutError" if timed_out else None,
            worker_stopped=None if self._child is None else _stopped(gone),
            finished_late=self._late,
            cancel_reason=order.reason,
            cancelled_by=order.by,
        )

    async def _end(self, ending: Ending) -> None:
        around = self._around
        entry = self._entry
        left = self._pending.rest()  # what the disk did not take is counted with the ending
        record = transitions.extended(entry.record, (), left.evidence, left.dropped).record
        assert isinstance(record, Record)  # noqa: S101  # for the type checker: only archiving makes a tombstone
        update = transitions.ended(
            record,
            entry.event_count,
            ending,
            at=timestamp(around.clock.utc()),
            effect_free=transitions.is_effect_free(record, frozenset(around.settings.effect_free_crews)),
        )
        await around.store.hold(update)

    async def _until_ordered(self, coming: Any) -> Any:
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

    @property
    def _entry(self) -> Entry:
        entry = self._around.store.find(self.action_id)
        if not isinstance(entry, Entry):
            raise TypeError(f"Action {self.action_id} has no entry while it runs")
        return entry

    @property
    def _record(self) -> Record:
        return self._entry.record


def _stopped(gone: frames.Exited | None) -> bool:
    """Local work has stopped: the child is reaped and nothing of its tree is left. Never: the provider has."""
    return gone is not None and gone.strangers == 0


async def _exited(child: Child, seconds: float) -> bool:
    done, _ = await asyncio.wait([child.exited], timeout=seconds)
    return bool(done)


async def _gone(child: Child, patience: float = 0.0) -> frames.Exited | None:
    """Wait for a child to leave by itself for `patience` seconds, then end it; None if it is not gone a while later."""
    if not await _exited(child, patience):
        child.kill()
        if not await _exited(child, STEP_SECONDS):
            return None
    return child.exited.result()


def _lost(started: bool, gone: frames.Exited | None) -> Ending:
    return Ending(
        status=Status.FAILED,
        cause=Cause.WORKER_LOST,
        provider_started=started,
        error_type="WorkerLost",
        worker_stopped=_stopped(gone),
    )


def _result_ending(result: frames.Result, gone: frames.Exited | None) -> Ending:
    if result.output is None:
        return Ending(
            status=Status.FAILED,
            cause=Cause.EXCEPTION,
            provider_started=result.provider_started,
            error_type=_class_name(result.error_type),
            worker_stopped=_stopped(gone),
        )
    return Ending(
        status=Status.COMPLETED,
        output=jsontext.encode(result.output),
        output_truncated=result.output_truncated,
        output_bytes=result.output_bytes,
        worker_stopped=_stopped(gone),
    )


def _class_name(name: str | None) -> str:
    """The name of an exception's class, fit for a record: a terminal event must stay within the least event bound."""
    return re.sub(r"\W", "_", name or "Exception", flags=re.ASCII)[:128] or "Exception"
