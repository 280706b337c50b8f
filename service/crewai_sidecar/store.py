"""The one place where order is decided: persist, then publish.

`commit` hands a change to the journal; when it is on disk, `_publish` applies it to the ledger and wakes its readers,
in one turn of the loop and in the order of the journal. There is no second way to change a record. A change that the
disk did not take is not applied, and its caller is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from crewai_sidecar import codec
from crewai_sidecar.clock import Clock, timestamp
from crewai_sidecar.errors import JournalFull, JournalRefused, NotStored, RetainedBound, SettingRefused
from crewai_sidecar.events import Watch, completed_event
from crewai_sidecar.journal import Change, Journal
from crewai_sidecar.ledger import Entry, Ledger
from crewai_sidecar.model import Cause, Ending, Record, Status, Tombstone
from crewai_sidecar.settings import PREFIX, Settings
from crewai_sidecar.transitions import Update, ended, is_effect_free

__all__ = ["MAX_TOMBSTONES", "Deliver", "Store"]

MAX_TOMBSTONES = 200_000
"""Archived Actions that are remembered; none is dropped, beyond it admission stops."""

_HOLD_SECONDS = 1.0
"""Time after which a held change is tried again without any sign that the disk has recovered."""


class Deliver:
    """Carries what the writer thread has settled over to the event loop, one wake-up a batch.

    The journal is opened before there is a store to tell, so this stands between the two.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.store: Store | None = None

    def __call__(self, batch: list[tuple[Change, NotStored | None]]) -> None:
        """Called on the writer thread."""
        if self.store is not None:
            self._loop.call_soon_threadsafe(self.store._publish, batch)


class Store:
    """Records, and the only way to change them."""

    def __init__(self, journal: Journal, deliver: Deliver, settings: Settings, clock: Clock) -> None:
        self.ledger = Ledger()
        self.watch = Watch()
        self.fenced = self.fenced_to_be_reconciled = 0
        self._journal = journal
        self._settings = settings
        self._clock = clock
        self._pending: dict[Change, tuple[Update, asyncio.Future[None]]] = {}
        self._recovered: asyncio.Future[None] | None = None
        self._held: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly
        self._unwritten: list[Update] = []
        self._admitting = 0
        self._unsettled: set[str] = set()  # keys whose fence is published but not written yet
        deliver.store = self

    # -- restoring ------------------------------------------------------------------------------------------------

    def restore(self, lines: list[bytes]) -> None:
        """Load the journal's lines, fence what was running, and make the fence durable. Blocks; needs no loop.

        A fence that the disk does not take is published all the same and written as soon as it can be: it follows from
        what is on disk alone, so the next start would say the same.

        Raises JournalRefused for a line that is not a record, SettingRefused for a record over a bound.
        """
        for number, line in enumerate(lines, start=1):
            try:
                decoded = codec.decode_line(line)
            except codec.InvalidLine as error:
                raise JournalRefused(
                    self._settings.state_file, f"record {number} cannot be read ({error})", "Restore it from a backup"
                ) from None
            record, events = (decoded, []) if isinstance(decoded, Tombstone) else decoded
            self.ledger.load(record, events)
            self._check_bounds(record.action_id)
        if self.ledger.retained > self._settings.max_retained_runs:
            raise SettingRefused(
                PREFIX + "MAX_RETAINED_RUNS",
                f"the journal has more records; it must be {self.ledger.retained} at least",
            )
        fence = [self._fence(entry) for entry in self.ledger if not entry.record.ended]
        self.fenced = len(fence)
        self.fenced_to_be_reconciled = sum(
            isinstance(update.record, Record) and update.record.to_be_reconciled for update in fence
        )
        refused = self._journal.start([self._change(update) for update in fence])
        for update in fence:
            self.ledger.apply(update)
        if refused is not None:
            self._unwritten = [Update(update.record, urgent=True) for update in fence]

    def resume(self) -> None:
        """Go on, on the event loop, with the fence that `restore` could not write."""
        for update in self._unwritten:
            self._unsettled.add(update.record.action_id)
            task = asyncio.get_running_loop().create_task(self._write_fence(update))
            self._held.add(task)
            task.add_done_callback(self._held.discard)
        self._unwritten = []

    async def _write_fence(self, update: Update) -> None:
        await self.hold(update)
        self._unsettled.discard(update.record.action_id)

    def _check_bounds(self, action_id: str) -> None:
        entry = self.ledger.find(action_id)
        if not isinstance(entry, Entry):
            return
        count = entry.event_count + (not entry.record.ended)  # the fence adds an ending to what is running
        longest = max(map(len, entry.events), default=0)
        if count > self._settings.max_events_per_run:
            raise SettingRefused(
                PREFIX + "MAX_EVENTS_PER_RUN", f"Action {action_id} has more events; it must be {count} at least"
            )
        if longest > self._settings.max_event_bytes:
            raise SettingRefused(
                PREFIX + "MAX_EVENT_BYTES", f"Action {action_id} has a longer event; it must be {longest} at least"
            )

    def _fence(self, entry: Entry) -> Update:
        record = entry.record
        ending = Ending(status=Status.FAILED, cause=Cause.RESTART, provider_started=record.provider_started)
        return ended(
            record,
            entry.event_count,
            ending,
            at=timestamp(self._clock.utc()),
            effect_free=is_effect_free(record, self._settings.effect_free_crews),
        )

    # -- changing -------------------------------------------------------------------------------------------------

    async def commit(self, update: Update) -> None:
        """Make a change durable, then visible; returns when both are done.

        What is committed is not taken back when the caller is cancelled: only its wait ends.

        Raises NotStored, and nothing is changed then.
        """
        admits = self.ledger.find(update.record.action_id) is None
        if admits:
            self._check_retained()
        elif isinstance(update.record, Tombstone) and update.record.action_id in self._unsettled:
            raise JournalFull("The ending of this Action is not on disk yet.")  # and would undo the tombstone
        change = self._change(update)
        self._admitting += admits
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending[change] = (update, future)
        self._journal.submit(change)
        await future

    async def hold(self, update: Update) -> None:
        """Commit a change that must not be lost: while the disk does not take it, it is held and tried again."""
        while not isinstance(self.find(update.record.action_id), Tombstone):
            try:
                await self.commit(update)
            except NotStored:
                await self._recovery()
            else:
                return

    def _check_retained(self) -> None:
        if self.ledger.retained + self._admitting >= self._settings.max_retained_runs:
            raise RetainedBound(
                f"{self._settings.max_retained_runs} records are retained: AIP_CREWAI_MAX_RETAINED_RUNS allows no more."
            )
        if self.ledger.tombstones >= MAX_TOMBSTONES:
            raise RetainedBound(f"{MAX_TOMBSTONES:,} archived Actions are remembered, as many as may be.")

    def _change(self, update: Update) -> Change:
        record = update.record
        if isinstance(record, Tombstone):
            return Change(record.action_id, codec.encode_tombstone(record))
        entry = self.ledger.find(record.action_id)
        before = entry.events if isinstance(entry, Entry) else []
        room = 0 if record.ended else self._settings.ending_room_bytes
        line = codec.encode_record(record, (*before, *update.events))
        return Change(record.action_id, line, room=room, urgent=update.urgent)

    def _publish(self, batch: list[tuple[Change, NotStored | None]]) -> None:
        """Apply what the disk has taken and wake who waits for it, in the journal's order."""
        recovered = False
        for change, error in batch:
            if change not in self._pending:  # the restart fence: `restore` has published it
                continue
            update, future = self._pending.pop(change)
            if self.ledger.find(change.key) is None:
                self._admitting -= 1
            if error is None:
                recovered = True
                self.ledger.apply(update)
                self.watch.wake(update)
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
        if recovered and self._recovered is not None:
            self._recovered.set_result(None)
            self._recovered = None

    async def _recovery(self) -> None:
        """Wait until some change has been taken again, or a second has passed."""
        if self._recovered is None:
            self._recovered = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._recovered], timeout=_HOLD_SECONDS)

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def journal_id(self) -> str:
        """Names this journal; 32 hex digits."""
        return self._journal.identity

    @property
    def durable(self) -> bool:
        """Whether there is a disk behind it."""
        return self._journal.durable

    @property
    def size(self) -> int:
        """Bytes of the journal."""
        return self._journal.size

    @property
    def refusal(self) -> str | None:
        """Why an admission would not be stored now: a stable code, or None."""
        if self.ledger.retained >= self._settings.max_retained_runs or self.ledger.tombstones >= MAX_TOMBSTONES:
            return RetainedBound.code
        return self._journal.trouble

    def find(self, action_id: str) -> Entry | Tombstone | None:
        """The published entry or the tombstone of an Action."""
        return self.ledger.find(action_id)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.ledger)

    def events(self, entry: Entry, cursor: int) -> list[bytes]:
        """The encoded events of an entry from a cursor on, the composed ending among them."""
        record = entry.record
        found = entry.events[cursor:]
        if record.status is Status.COMPLETED and record.output is not None and cursor <= len(entry.events):
            found = [*found, completed_event(record.output, len(entry.events))]
        return found

    async def ending(self, action_id: str, seconds: float | None = None) -> Entry | Tombstone | None:
        """Wait for an Action to end, `seconds` at most; the entry as it is then."""
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            entry = self.find(action_id)
            if not isinstance(entry, Entry) or entry.record.ended:
                return entry
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return entry
            await self.watch.changed(action_id, left)

    def close(self) -> None:
        """Settle what was submitted and give the journal back. Blocks on the disk."""
        self._journal.close()
