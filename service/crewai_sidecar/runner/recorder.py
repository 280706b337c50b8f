"""The events of one run on their way to disk: one commit in flight at a time, and a bound on what waits for it."""

from __future__ import annotations

import asyncio

from crewai_sidecar import transitions
from crewai_sidecar.errors import NotStored
from crewai_sidecar.frames import Event
from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Record
from crewai_sidecar.runner.batching import Pending
from crewai_sidecar.settings import Settings
from crewai_sidecar.store import Store

__all__ = ["Recorder"]

_RETRY_SECONDS = 0.5
"""Time after which events that the disk did not take are tried once more."""

_BACKLOG_BYTES = 1 << 20
"""Bytes that may wait for the disk before whoever adds has to wait: the child's socket is not read then."""


class Recorder:
    """Commits what is added, until it is closed and all is taken.

    The next sequence depends on the commit in flight, so `run` is never cancelled: it is closed, and awaited.
    """

    def __init__(self, store: Store, entry: Entry, settings: Settings) -> None:
        self.progress = 0
        self._store = store
        self._entry = entry
        self._pending = Pending(
            max_events=settings.max_events_per_run,
            max_event_bytes=settings.max_event_bytes,
            most=settings.stream_checkpoint_events,
        )
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._closing = False

    async def add(self, event: Event) -> None:
        """Take an event; wait while too much waits for the disk."""
        self.progress += 1
        self._pending.add(event)
        self._news.set()
        while self._pending.size > _BACKLOG_BYTES:
            self._taken.clear()
            await self._taken.wait()

    def count(self, dropped: int) -> None:
        """Add to the number of events that are not stored."""
        self._pending.count(dropped)

    def close(self) -> None:
        """Let `run` return when it has tried to store what waits."""
        self._closing = True
        self._news.set()

    async def run(self) -> None:
        """Commit events as they come."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._pending and await self._flush():
                pass
            if self._closing:
                return

    def last_word(self) -> Record:
        """The record with what no commit has taken: evidence, and the count of all events that are not stored."""
        left = self._pending.rest()
        return transitions.with_evidence(self._entry.record, left.evidence, left.dropped)

    async def _flush(self) -> bool:
        """Commit one batch; False when the disk does not take it, twice: the run goes on without its events."""
        batch = self._pending.take(self._entry.event_count)
        update = transitions.extended(self._entry.record, batch.events, batch.evidence, batch.dropped)
        for pause in (_RETRY_SECONDS, None):
            try:
                await self._store.commit(update)
            except NotStored:
                if pause is not None and not self._closing:
                    await asyncio.sleep(pause)
                    continue
                self._pending.give_up(batch)
                return False
            else:
                self.progress += 1
                return True
            finally:
                self._taken.set()
        return False
