"""The door: look-up and reservation in one step, then the disk, then the queue.

Between looking an Action ID up and reserving it there is no await, so of any number of identical requests one is new
and the others are repeats. A repeat that comes while the first is on its way to disk waits for that same
write. Admission is a task of its own: it does not end with the connection of whoever asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from crewai_sidecar import identity, transitions
from crewai_sidecar.clock import Clock, timestamp
from crewai_sidecar.errors import (
    ActionArchived,
    CrewUnknown,
    Draining,
    InputInvalid,
    InvalidActionId,
    OperationNotAllowed,
    RequestConflict,
    SidecarError,
)
from crewai_sidecar.frames import Crew
from crewai_sidecar.inputs import check_input
from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Operation, Record, Tombstone
from crewai_sidecar.settings import Settings
from crewai_sidecar.store import Store

__all__ = ["Admission", "Admitted", "Scheduler", "StartRequest"]


class Scheduler(Protocol):
    """What admission asks of the runner."""

    draining: bool

    @property
    def crews(self) -> Mapping[str, Crew]:
        """The registry's crews by id."""

    def reserve(self, input_bytes: int) -> None:
        """Take a place in the queue. Raises QueueFull."""

    def release(self, input_bytes: int) -> None:
        """Give the place back: the admission was not stored."""

    def schedule(self, action_id: str, input_object: dict[str, Any], input_bytes: int) -> None:
        """Run a durable record; the place in the queue is the scheduler's from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A start that has passed every check of its form.

    `operation` is a name that may still be one that starts nothing. `input_bytes` is the input's size as compact UTF-8
    JSON.
    """

    action_id: str
    crew_id: str
    operation: str
    input: dict[str, Any]
    input_bytes: int
    timeout_ms: int | None
    key: str
    trace_id: str | None = None
    span_id: str | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A durable record that answers a request: new, or a repeat of an earlier one."""

    entry: Entry
    new: bool


class Admission:
    """Decides what a start request is: new work, a repeat, a conflict, or refused."""

    def __init__(self, store: Store, scheduler: Scheduler, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._scheduler = scheduler
        self._settings = settings
        self._clock = clock
        self._in_flight: dict[str, asyncio.Task[None]] = {}

    async def admit(self, request: StartRequest) -> Admitted:
        """Answer with the durable record of this request.

        Checks in the order of deploy/guide/contract.md. Raises RequestConflict, ActionArchived, Draining,
        OperationNotAllowed, InputInvalid, InvalidActionId, CrewUnknown, QueueFull, and NotStored when the disk did not
        take it.
        """
        canonical = identity.canonical(
            action_id=request.action_id,
            crew_id=request.crew_id,
            operation=request.operation,
            input_object=request.input,
            timeout_ms=request.timeout_ms,
            key=request.key,
        )
        request_hash = identity.request_hash(canonical)
        if request.action_id in self._in_flight:
            await self.settled(request.action_id)
        known = self._store.find(request.action_id)
        if known is not None:
            return Admitted(_repeat(known, request_hash), new=False)
        record = self._new_record(request, request_hash)
        self._scheduler.reserve(request.input_bytes)
        task = asyncio.get_running_loop().create_task(self._persist(record, request), name=f"admit {record.action_id}")
        self._in_flight[record.action_id] = task
        await asyncio.shield(task)
        entry = self._store.find(record.action_id)
        assert isinstance(entry, Entry)  # noqa: S101  # the commit has just published it
        return Admitted(entry, new=True)

    async def settled(self, action_id: str) -> None:
        """Wait until an Action that is on its way to disk is there.

        Raises NotStored when it did not get there: whoever waited is told the same as the one who came first.
        """
        task = self._in_flight.get(action_id)
        if task is not None:
            await asyncio.shield(task)

    def _new_record(self, request: StartRequest, request_hash: str) -> Record:
        if self._scheduler.draining:
            raise Draining("The sidecar takes no new Action until it is restarted. Send the same request to it then.")
        if request.operation not in self._settings.allowed_operations:
            raise OperationNotAllowed(f"The operation {request.operation} is not in AIP_CREWAI_ALLOWED_OPERATIONS.")
        operation = Operation(request.operation)
        check_input(operation, request.input)
        _check_action_id(request.action_id)
        crew = self._scheduler.crews.get(request.crew_id)
        if crew is not None and crew.operations is not None and operation not in crew.operations:
            raise InputInvalid(f"The crew {request.crew_id} has no method for the operation {operation}.")
        if crew is None:
            raise CrewUnknown(f"The registry has no crew {request.crew_id!r}.")
        return Record(
            action_id=request.action_id,
            crew_id=request.crew_id,
            operation=operation,
            request_hash=request_hash,
            hash_version=identity.HASH_VERSION,
            key_digest=identity.key_digest(self._store.journal_id, request.key),
            timeout_ms=request.timeout_ms,
            trace_id=request.trace_id,
            span_id=request.span_id,
            accepted_at=timestamp(self._clock.utc()),
        )

    async def _persist(self, record: Record, request: StartRequest) -> None:
        try:
            await self._store.commit(transitions.accepted(record))
        except SidecarError:
            self._scheduler.release(request.input_bytes)
            raise
        finally:
            del self._in_flight[record.action_id]
        self._scheduler.schedule(record.action_id, request.input, request.input_bytes)


def _repeat(known: Entry | Tombstone, request_hash: str) -> Entry:
    stored = known.request_hash if isinstance(known, Tombstone) else known.record.request_hash
    if stored != request_hash:
        raise RequestConflict(
            "This Action ID is known with another request. Find the first request; do not change the ID to get past it."
        )
    if isinstance(known, Tombstone):
        raise ActionArchived(f"This Action was archived at {known.archived_at}; it ended {known.status}.")
    return known


def _check_action_id(action_id: str) -> None:
    """Refuse an id that no path could address: it could be admitted, but never read or cancelled."""
    if action_id in {".", ".."} or "/" in action_id or any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in action_id):
        raise InvalidActionId("An Action ID has no '/', no control character, and is not '.' or '..'.")
