"""The writer: one thread, one checkpoint for all that waits, and room kept for what must not be refused."""

from __future__ import annotations

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

_PROBE_SECONDS = 2.0
"""Time after which a journal that refused something tries a checkpoint by itself, to know that it could again."""

_log = logging.getLogger(__name__)


class DurableJournal:
    """A journal on disk, in its seed-exact mode."""

    durable = True

    def __init__(
        self,
        place: Place,
        lines: dict[str, tuple[bytes, ...]],
        *,
        lock: Lock,
        max_bytes: int,
        settled: Settled,
        observer: Observer,
    ) -> None:
        self._place = place
        self._lines = lines
        self._rooms: dict[str, int] = {}
        self._lock = lock
        self._max_bytes = max_bytes
        self._settled = settled
        self._observer = observer
        self._size = 0
        self._trouble: str | None = None
        self._queue: SimpleQueue[Change | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)

    # -- the interface --------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Names this journal; 32 hex digits."""
        return self._place.header.journal_id

    @property
    def size(self) -> int:
        """Bytes of the checkpoint on disk."""
        return self._size

    @property
    def trouble(self) -> str | None:
        """Code of the last commit's failure, or None."""
        return self._trouble

    def submit(self, change: Change) -> None:
        """Hand a change to the writer thread; `settled` says what became of it."""
        self._queue.put(change)

    def start(self, fence: list[Change]) -> NotStored | None:
        """Write the restart fence and the first checkpoint, and start the thread; what the disk did not take, if so.

        The rooms that a former process kept are not known here, so the fence may use whatever the bound leaves.
        """
        refused = self._attempt(fence, frugal=True)
        self._thread.start()
        return refused

    def close(self) -> None:
        """Settle everything that was submitted, remove the spare file, and give the lock back."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._place.close()
        self._lock.release()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        running = True
        while running:
            batch: list[Change] = []
            try:
                change = self._queue.get(timeout=_PROBE_SECONDS if self._trouble else None)
                while change is not None:
                    batch.append(change)
                    change = self._queue.get_nowait()
                running = False
            except Empty:
                pass
            if batch:
                self._settle(batch)
            elif running:
                self._attempt([])  # nobody asks: find out whether an admission would be taken again

    def _settle(self, batch: list[Change]) -> None:
        """Commit a batch and say what became of it; whatever goes wrong, the thread goes on and nobody waits on."""
        try:
            outcome = self._commit(batch)
        except Exception as error:  # noqa: BLE001  # MemoryError among it: a commit that hangs is worse than a refusal
            _log.exception("the journal's writer failed")
            broken = JournalBroken(f"The journal's writer failed: {type(error).__name__}.")
            outcome = [(change, broken) for change in batch]
        try:
            self._settled(outcome)
        except RuntimeError:
            _log.exception("a settled batch could not be delivered")

    def _commit(self, batch: list[Change]) -> list[tuple[Change, NotStored | None]]:
        """Write a batch; where it does not fit as a whole, what is urgent first, then the rest, kind by kind.

        What is urgent, and what concerns known keys, is then tried one by one: a change that is too large holds up no
        other. Admissions are refused together.
        """
        outcome: dict[Change, NotStored | None] = {}
        alone = [[change] for change in batch if change.urgent or change.key in self._lines]
        for division in ([batch], self._parts(batch), alone if len(batch) > 1 else []):
            for part in division:
                if open_ := [change for change in part if _is_open(outcome, change)]:
                    outcome |= dict.fromkeys(open_, self._attempt(open_))
        return [(change, outcome[change]) for change in batch]

    def _parts(self, batch: list[Change]) -> list[list[Change]]:
        urgent = [change for change in batch if change.urgent]
        known = [change for change in batch if not change.urgent and change.key in self._lines]
        new = [change for change in batch if not change.urgent and change.key not in self._lines]
        parts = [part for part in (urgent, known, new) if part]
        return parts if len(parts) > 1 else []

    # -- one checkpoint -------------------------------------------------------------------------------------------

    def _attempt(self, changes: list[Change], *, frugal: bool = False) -> NotStored | None:
        """Write one checkpoint with these changes; nothing of them is kept unless all of them are durable.

        `frugal` changes, and those that take no more than was kept for them, need no room beside their own text.
        """
        begin = time.monotonic()
        lines, rooms, within = self._changed(changes)
        header = self._place.header.next()
        text = compose(header, lines.values(), len(lines))
        kept = len(text) + sum(rooms.values())
        frugal = frugal or (bool(changes) and within) or kept < self._size + sum(self._rooms.values())
        try:
            self._check_bound(len(text) if frugal else kept)
            self._place.check_ours()
            self._place.replace(text, header, keep=None if frugal else kept)
        except (NotStored, OSError) as error:
            refused = error if isinstance(error, NotStored) else refusal(error)
            self._observer.failed(refused.code)
            self._in_trouble(refused)
            return refused
        self._lines, self._rooms, self._size = lines, rooms, len(text)
        self._remember()
        if frugal:
            self._place.provide(kept)
        else:
            self._in_trouble(None)
        self._observer.committed(time.monotonic() - begin, len(changes), len(text))
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

    def _check_bound(self, size: int) -> None:
        if size > self._max_bytes:
            raise JournalFull(
                f"The journal would have {size:,} bytes with the room it keeps; {self._max_bytes:,} may be."
            )

    def _remember(self) -> None:
        """Write the journal's id into the lock, once. Until that works, each commit tries again."""
        try:
            self._lock.remember(self._place.header.journal_id)
        except OSError:
            return  # only the difference between a first start and a lost journal hangs on it


def _length(line: tuple[bytes, ...]) -> int:
    return sum(map(len, line))


def _is_open(outcome: dict[Change, NotStored | None], change: Change) -> bool:
    """Whether a change has not been tried yet, or did not fit where it was tried."""
    return change not in outcome or isinstance(outcome[change], JournalFull)
