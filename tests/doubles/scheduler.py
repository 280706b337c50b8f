"""A scheduler that runs no crew: a test says when an Action starts, what it emits, and how it ends.

Everything goes through the real store, so what a route shows is what was committed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from crewai_sidecar import codec, jsontext, transitions
from crewai_sidecar.errors import QueueFull
from crewai_sidecar.frames import Crew
from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Cause, Ending, Record, Status
from crewai_sidecar.store import Store

AT = "2026-01-01T00:00:00.000000Z"


class ManualScheduler:
    """Holds what is scheduled until it is told. `answer` completes everything at once with that output."""

    def __init__(self, store: Store, *crews: Crew) -> None:
        self.crews = {crew.crew_id: crew for crew in crews or (Crew(crew_id="crew"), Crew(crew_id="other"))}
        self.draining = False
        self.worker = "ready"
        self.full = False
        self.answer: dict[str, Any] | None = None
        self.holds_cancels = False
        """Orders to stop are taken and have no effect, as with a process that will not go."""
        self.scheduled: dict[str, dict[str, Any]] = {}
        """Inputs by Action ID, in order."""
        self.orders: dict[str, tuple[str | None, str | None]] = {}
        """The first order to stop of each Action: reason, cancelled_by."""
        self._store = store
        self._reserved = 0
        self._started: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- what admission and the routes ask ------------------------------------------------------------------------

    @property
    def active(self) -> int:
        return sum(map(self._runs, self._started))

    @property
    def queued(self) -> int:
        return sum(map(self._runs, self.scheduled.keys() - self._started))

    def reserve(self, input_bytes: int) -> None:
        if self.full:
            raise QueueFull("As many Actions wait as may.")
        self._reserved += 1

    def release(self, input_bytes: int) -> None:
        self._reserved -= 1

    def schedule(self, action_id: str, input_object: dict[str, Any], input_bytes: int) -> None:
        self._reserved -= 1
        self.scheduled[action_id] = input_object
        if self.answer is not None:
            self._task(self.complete(action_id, self.answer))

    def cancel(self, action_id: str, *, reason: str | None, cancelled_by: str | None) -> None:
        if action_id in self.orders or self._entry(action_id).record.ended:
            return
        self.orders[action_id] = (reason, cancelled_by)
        if not self.holds_cancels:
            self._task(self.end(action_id, Status.CANCELLED, Cause.CANCELLED))

    def drain(self) -> None:
        self.draining = True

    # -- what a test says -----------------------------------------------------------------------------------------

    async def start(self, action_id: str) -> None:
        """Make `started` durable."""
        self._started.add(action_id)
        await self._store.commit(transitions.started(self._record(action_id), at=AT))

    async def emit(self, action_id: str, *contents: str) -> None:
        """Add chunks, one event each, in one commit."""
        first = self._entry(action_id).event_count
        events = [codec.encode_event("chunk", first + n, {"content": text}) for n, text in enumerate(contents)]
        await self._store.commit(transitions.extended(self._record(action_id), tuple(events), [], 0))

    async def complete(self, action_id: str, output: dict[str, Any]) -> None:
        """End an Action with an output."""
        if action_id not in self._started:
            await self.start(action_id)
        ending = Ending(status=Status.COMPLETED, output=jsontext.encode(output), worker_stopped=True)
        await self._end(action_id, ending)

    async def end(self, action_id: str, status: Status, cause: Cause, error_type: str | None = None) -> None:
        """End an Action without an output."""
        reason, cancelled_by = self.orders.get(action_id, (None, None))
        ending = Ending(
            status=status,
            cause=cause,
            error_type=error_type,
            provider_started=action_id in self._started,
            cancel_reason=reason,
            cancelled_by=cancelled_by,
        )
        await self._end(action_id, ending)

    async def _end(self, action_id: str, ending: Ending) -> None:
        entry = self._entry(action_id)
        await self._store.commit(transitions.ended(entry.record, entry.event_count, ending, at=AT, effect_free=False))

    def _task(self, coming: Any) -> None:
        task = asyncio.get_running_loop().create_task(coming)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _runs(self, action_id: str) -> bool:
        entry = self._store.find(action_id)
        return isinstance(entry, Entry) and not entry.record.ended

    def _entry(self, action_id: str) -> Entry:
        entry = self._store.find(action_id)
        assert isinstance(entry, Entry)
        return entry

    def _record(self, action_id: str) -> Record:
        return self._entry(action_id).record
