"""The writer: one thread, one checkpoint for all that waits, and bytes kept for what must not be refused."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from queue import Empty, SimpleQueue

from crewai_sidecar.errors import JournalBroken, JournalFull, NotStored
from crewai_sidecar.journal._change import Change, Observer, Settled
from crewai_sidecar.journal._checkpoint import compose
from crewai_sidecar.journal._disk import Place, refusal
from crewai_sidecar.journal._lock import Lock

__all__ = ["DurableJournal"]

_log = logging.getLogger(__name__)

_PROBE_SECONDS = 2.0
"""Time after which a journal that refused something tries a checkpoint by itself, to know that it could again."""

_Outcome = dict[Change, NotStored | None]


class DurableJournal:
    """A journal on disk, in its seed-exact mode."""

    durable = True

    def __init__(
        self,
        place: Place,
        lines: dict[str, tuple[bytes, ...]],
        size: int,
        *,
        lock: Lock,
        max_bytes: int,
        settled: Settled,
        observer: Observer,
    ) -> None:
        self.identity = place.header.journal_id
        self._place = place
        self._lock = lock
        self._lines = lines
        self._rooms: dict[str, int] = {}
        self._largest_room = 0
        self._size = size
        self._max_bytes = max_bytes
        self._settled = settled
        self._observer = observer
        self._trouble: str | None = None
        self._closed = False
        self._queue: SimpleQueue[Change | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)

    # -- the interface --------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Bytes of the last acknowledged checkpoint."""
        return self._size

    @property
    def trouble(self) -> str | None:
        """Code of what an admission would meet, or None."""
        return self._trouble

    def submit(self, change: Change) -> None:
        """Hand a change to the writer thread; `settled` says what became of it. Not after `close`."""
        self._queue.put(change)

    def start(self, fence: list[Change]) -> NotStored | None:
        """Write the restart fence and the first checkpoint, and start the thread; what the disk did not take, if so.

        The rooms that a former process kept are not known here, so the fence may use whatever the bound leaves.
        """
        try:
            return self._attempt(fence, frugal=True)
        finally:
            self._thread.start()

    def close(self) -> None:
        """Settle everything that was submitted, remove the reserve, and give the lock back. Once is enough."""
        if self._closed:
            return
        self._closed = True
        if self._thread.ident is None:  # never started: what was submitted is settled all the same
            self._thread.start()
        self._queue.put(None)
        self._thread.join()
        self._place.close()
        self._lock.release()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        running = True
        while running:
            batch: list[Change] = []
            wait = _PROBE_SECONDS if self._trouble else None
            while True:
                try:
                    change = self._queue.get(timeout=wait) if not batch and running else self._queue.get_nowait()
                except Empty:
                    break
                if change is None:
                    running = False
                else:
                    batch.append(change)
            if batch:
                self._settle(batch)
            elif running:
                self._probe()

    def _settle(self, batch: list[Change]) -> None:
        """Commit a batch and say what became of it. Raises nothing: without this thread everybody waits for ever."""
        try:
            outcome = self._commit(batch)
        except Exception as error:  # noqa: BLE001  # a fault of ours: what is on disk is not known, nobody may wait
            _log.exception("the journal's writer failed; nothing is written until a restart")
            self._place.disown()
            refused = JournalBroken(f"The journal's writer failed: {type(error).__name__}. Only a restart helps.")
            self._in_trouble(refused)
            outcome = [(change, refused) for change in batch]
        try:
            self._settled(outcome)
        except Exception:  # noqa: BLE001  # who listened has gone; what others submit is still written
            _log.exception("a settled batch could not be delivered")

    def _probe(self) -> None:
        """Nobody asks: find out whether an admission would be taken again."""
        if self._size + sum(self._rooms.values()) + self._largest_room > self._max_bytes:
            return
        try:
            self._attempt([], spare=self._largest_room)
        except Exception:  # noqa: BLE001  # the next batch meets it too, and says so to who waits
            _log.exception("the journal's writer failed")

    # -- a batch --------------------------------------------------------------------------------------------------

    def _commit(self, batch: list[Change]) -> list[tuple[Change, NotStored | None]]:
        """Write a batch; where it does not fit as a whole, what is urgent first, then known keys, then admissions.

        Of what is urgent and of known keys as much is written as fits. Admissions are refused together.
        """
        refused = self._attempt(batch)
        if not isinstance(refused, JournalFull) or len(batch) == 1:
            return [(change, refused) for change in batch]
        urgent, rest = _divide(batch)
        known = [part for part in rest if part[0].key in self._lines]
        new = [change for part in rest if part[0].key not in self._lines for change in part]
        outcome = self._fit(urgent) | self._fit(known)
        if new:
            outcome |= dict.fromkeys(new, self._attempt(new))
        return [(change, outcome[change]) for change in batch]

    def _fit(self, parts: list[list[Change]]) -> _Outcome:
        """Write as many parts as there is room for, those first that ask least: if none of these fits, none does."""
        changes = [change for part in parts for change in part]
        if not changes:
            return {}
        refused = self._attempt(changes)
        if not isinstance(refused, JournalFull) or len(parts) == 1:
            return dict.fromkeys(changes, refused)
        parts = sorted(parts, key=self._asks)
        half = len(parts) // 2
        outcome = self._fit(parts[:half])
        if None not in outcome.values():
            return outcome | dict.fromkeys((change for part in parts[half:] for change in part), refused)
        return outcome | self._fit(parts[half:])

    def _asks(self, part: list[Change]) -> tuple[bool, int]:
        """What a part asks for: more than its own, and by how much it makes the journal larger."""
        change = part[-1]
        growth = _length(change.line) - _length(self._lines.get(change.key, ()))
        own = self._rooms.get(change.key, 0) if change.urgent else 0
        return growth > own, growth

    # -- one checkpoint -------------------------------------------------------------------------------------------

    def _attempt(self, changes: list[Change], *, frugal: bool = False, spare: int = 0) -> NotStored | None:
        """Write one checkpoint with these changes; nothing of them is kept unless all of them are durable.

        `frugal` changes, and those that take no more than was kept for them, need no room beside their own text. With
        `spare`, as many bytes of room must be free beyond those that are kept.

        What is returned was never raised: a traceback would hold on to the text of the checkpoint.
        """
        begin = time.monotonic()
        try:
            refused = self._write(changes, frugal=frugal, spare=spare)
        except (OSError, MemoryError) as error:
            refused = refusal(error)
        if refused is not None:
            self._observer.failed(refused.code)
            self._in_trouble(refused)
            return refused
        with contextlib.suppress(OSError):  # until that works, each commit tries again; a lost journal is known by it
            self._lock.remember(self.identity)
        self._observer.committed(time.monotonic() - begin, len(changes), self._size)
        return None

    def _write(self, changes: list[Change], *, frugal: bool, spare: int) -> NotStored | None:
        """Write one checkpoint, or return why it may not be. Raises OSError and MemoryError; nothing is kept then."""
        if not self._place.is_ours():
            return JournalBroken(
                f"{self._place.path} is not the file that was written last: somebody else writes here. It is left."
            )
        lines, rooms, within = self._changed(changes)
        header = self._place.header.next()
        text = compose(header, lines.values(), len(lines))
        room = sum(rooms.values()) + spare
        smaller = len(text) + room < self._size + sum(self._rooms.values())  # as archiving does, the way out
        frugal = frugal or smaller or (bool(changes) and within)
        size = len(text) if frugal else len(text) + room
        if size > self._max_bytes:
            return JournalFull(
                f"The journal would have {size:,} bytes with the room it keeps; {self._max_bytes:,} may be."
            )
        # An ending makes this file larger and the one that follows it, so room counts twice on the disk.
        self._place.replace(text, header, keep=len(text) + 2 * room, ahead=not frugal)
        self._lines, self._rooms, self._size = lines, rooms, len(text)
        self._largest_room = max([self._largest_room, *(change.room for change in changes)])
        if not frugal:
            self._in_trouble(None)
        return None

    def _changed(self, changes: list[Change]) -> tuple[dict[str, tuple[bytes, ...]], dict[str, int], bool]:
        """Lines and rooms with the changes, and whether each of these takes no more than the room kept for its key."""
        lines, rooms, within = dict(self._lines), dict(self._rooms), True
        for change in changes:
            growth = _length(change.line) - _length(lines.get(change.key, ()))
            room = rooms.pop(change.key, 0)
            lines[change.key] = change.line
            if change.urgent and growth <= room:
                left = min(change.room, room - max(growth, 0))
            else:
                left, within = change.room, False
            if left:
                rooms[change.key] = left
        return lines, rooms, within

    def _in_trouble(self, refused: NotStored | None) -> None:
        """Note why an admission is not taken, or that it would be again; the log has each change of it once."""
        code = None if refused is None else refused.code
        if code == self._trouble:
            return
        self._trouble = code
        if refused is None:
            _log.warning("the journal takes changes again")
        else:
            _log.error("the journal does not take changes: %s", refused, extra={"code": code})


def _divide(batch: list[Change]) -> tuple[list[list[Change]], list[list[Change]]]:
    """Part a batch by key, in order: up to a key's last urgent change, and what comes after that.

    A part is written together, so that an older line of a key never follows a newer one to the disk.
    """
    urgent: dict[str, list[Change]] = {}
    rest: dict[str, list[Change]] = {}
    for change in batch:
        rest.setdefault(change.key, []).append(change)
        if change.urgent:
            urgent.setdefault(change.key, []).extend(rest.pop(change.key))
    return list(urgent.values()), list(rest.values())


def _length(line: tuple[bytes, ...]) -> int:
    return sum(map(len, line))
