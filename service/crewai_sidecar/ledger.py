"""What is known, in memory: an entry for each record and a tombstone for each archived Action.

Only `apply` changes it, and only the store calls `apply`, after the change is on disk. Everything else reads.
"""

from __future__ import annotations

from collections.abc import Iterator

from crewai_sidecar.model import Record, Status, Tombstone
from crewai_sidecar.transitions import Update

__all__ = ["Entry", "Ledger"]


class Entry:
    """One Action as its readers see it: the record and its published events, encoded."""

    __slots__ = ("events", "record")

    def __init__(self, record: Record, events: list[bytes]) -> None:
        self.record = record
        self.events = events

    @property
    def event_count(self) -> int:
        """Events that a reader can see; the composed terminal event of a completed record is the last of them."""
        return len(self.events) + (self.record.status is Status.COMPLETED)


class Ledger:
    """Entries in order of admission, and tombstones, by Action ID."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._tombstones: dict[str, Tombstone] = {}
        self._running = 0
        self._to_be_reconciled = 0

    def find(self, action_id: str) -> Entry | Tombstone | None:
        """The entry or tombstone of an Action."""
        return self._entries.get(action_id) or self._tombstones.get(action_id)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    @property
    def retained(self) -> int:
        """Records, tombstones not among them."""
        return len(self._entries)

    @property
    def tombstones(self) -> int:
        """Archived Actions."""
        return len(self._tombstones)

    @property
    def running(self) -> int:
        """Records without an ending."""
        return self._running

    @property
    def to_be_reconciled(self) -> int:
        """Records whose effect an operator has to find out."""
        return self._to_be_reconciled

    def apply(self, update: Update) -> None:
        """Make a durable change visible."""
        if isinstance(update.record, Tombstone):
            archived = self._entries.pop(update.record.action_id, None)
            if archived is not None:
                self._count(archived.record, -1)
            self._tombstones[update.record.action_id] = update.record
            return
        entry = self._entries.get(update.record.action_id)
        if entry is None:
            entry = self._entries[update.record.action_id] = Entry(update.record, [])
        else:
            self._count(entry.record, -1)
        entry.record = update.record
        entry.events.extend(update.events)
        self._count(entry.record, 1)

    def load(self, record: Record | Tombstone, events: list[bytes]) -> None:
        """Take a line of the restored journal."""
        if isinstance(record, Tombstone):
            self._tombstones[record.action_id] = record
        else:
            self._entries[record.action_id] = Entry(record, events)
            self._count(record, 1)

    def _count(self, record: Record, step: int) -> None:
        self._running += step * (not record.ended)
        self._to_be_reconciled += step * record.to_be_reconciled
