"""The writer: one thread, one checkpoint for all that waits, and room kept on the disk for what must not be refused.

A commit is the seed's protocol to the letter: a temporary file of mode 0600 in the journal's directory, written,
flushed, fsynced, renamed over the journal, and the directory fsynced. FORMAT.md has the crash table; the steps below
carry its row names.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from crewai_sidecar.errors import JournalBroken, JournalFull, NotStored
from crewai_sidecar.journal._change import Change, Observer, Settled
from crewai_sidecar.journal._checkpoint import Header, compose, read_generation
from crewai_sidecar.journal._files import Files
from crewai_sidecar.journal._lock import Lock

__all__ = ["DurableJournal"]

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})

_HEADER_BYTES = 4096
"""More than a header line ever has: what is read to see whose checkpoint is on disk."""


@dataclass(slots=True)
class _Spare:
    """The next temporary file: it exists before it is needed, so that its blocks are ours when the disk is full."""

    path: Path
    descriptor: int
    allocated: int = 0


class DurableJournal:
    """A journal on disk, in its seed-exact mode."""

    durable = True

    def __init__(
        self,
        path: Path,
        header: Header,
        lines: dict[str, tuple[bytes, ...]],
        on_disk: tuple[int, int] | None,
        *,
        lock: Lock,
        max_bytes: int,
        settled: Settled,
        files: Files,
        observer: Observer,
    ) -> None:
        self._path = path
        self._header = header
        self._lines = lines
        self._rooms: dict[str, int] = {}
        self._on_disk = on_disk
        self._lock = lock
        self._max_bytes = max_bytes
        self._settled = settled
        self._files = files
        self._observer = observer
        self._spare: _Spare | None = None
        self._size = 0
        self._trouble: str | None = None
        self._estranged: JournalBroken | None = None
        self._queue: SimpleQueue[Change | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)

    # -- the interface --------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Names this journal; 32 hex digits."""
        return self._header.journal_id

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
        """Write the restart fence and the first checkpoint, and start the thread; what the disk did not take, if so."""
        refused = self._attempt(fence, urgent=True)
        self._trouble = None if refused is None else refused.code
        self._thread.start()
        return refused

    def close(self) -> None:
        """Settle everything that was submitted, remove the spare file, and give the lock back."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._discard(self._spare)
        self._spare = None
        self._lock.release()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        running = True
        while running:
            batch: list[Change] = []
            change = self._queue.get()
            try:
                while change is not None:
                    batch.append(change)
                    change = self._queue.get_nowait()
                running = False
            except Empty:
                pass
            if batch:
                self._settled(self._commit(batch))

    def _commit(self, batch: list[Change]) -> list[tuple[Change, NotStored | None]]:
        """Write a batch; where it does not fit as a whole, what is urgent first, then the rest, kind by kind."""
        outcome: dict[Change, NotStored | None] = {}
        refused = self._attempt(batch, urgent=all(change.urgent for change in batch))
        if isinstance(refused, JournalFull) and len(batch) > 1:
            for part in self._parts(batch):
                refused = self._attempt(part, urgent=part[0].urgent)
                outcome |= dict.fromkeys(part, refused)
        else:
            outcome = dict.fromkeys(batch, refused)
        failures = [error for error in outcome.values() if error is not None]
        self._trouble = failures[-1].code if failures else None
        return [(change, outcome[change]) for change in batch]

    def _parts(self, batch: list[Change]) -> list[list[Change]]:
        urgent = [change for change in batch if change.urgent]
        known = [change for change in batch if not change.urgent and change.key in self._lines]
        new = [change for change in batch if not change.urgent and change.key not in self._lines]
        return [part for part in (urgent, known, new) if part]

    # -- one checkpoint -------------------------------------------------------------------------------------------

    def _attempt(self, changes: list[Change], *, urgent: bool) -> NotStored | None:
        """Write one checkpoint with these changes; nothing of them is kept unless all of them are durable."""
        begin = time.monotonic()
        lines = {**self._lines, **{change.key: change.line for change in changes}}
        rooms = {**self._rooms, **{change.key: change.room for change in changes}}
        rooms = {key: room for key, room in rooms.items() if room}
        header = self._header.next()
        text = compose(header, lines.values(), len(lines))
        try:
            self._check_bound(len(text) + (0 if urgent else sum(rooms.values())))
            self._check_ours()
            self._replace(text, header, keep=None if urgent else len(text) + sum(rooms.values()))
        except (NotStored, OSError) as error:
            refused = error if isinstance(error, NotStored) else _refusal(error)
            self._observer.failed(refused.code)
            return refused
        self._lines, self._rooms, self._size = lines, rooms, len(text)
        self._remember()
        if urgent:
            self._provide(len(text) + sum(rooms.values()))
        self._observer.committed(time.monotonic() - begin, len(changes), len(text))
        return None

    def _check_bound(self, size: int) -> None:
        if size > self._max_bytes:
            raise JournalFull(
                f"The journal would have {size:,} bytes with the room it keeps; {self._max_bytes:,} may be."
            )

    def _check_ours(self) -> None:
        """Refuse, from now on, to replace a file that is not the one we wrote last."""
        if self._estranged is not None:
            raise self._estranged
        found = _generation_on_disk(self._path)
        expected = None if self._on_disk is None else (*self._on_disk, self._header.journal_id, self._header.generation)
        if found != expected:
            self._estranged = JournalBroken(
                f"{self._path} is not the file that was written last: somebody else writes here. It is left alone."
            )
            raise self._estranged

    def _replace(self, text: bytes, header: Header, *, keep: int | None) -> None:
        """Put a text in the journal's place. With `keep`, only if the file after it is sure to have that many bytes.

        Raises OSError.
        """
        spare, self._spare = self._spare or self._create(), None
        following: _Spare | None = None
        try:
            if keep is not None:
                following = self._create()
                self._allocate(following, keep)
            self._allocate(spare, len(text))
            self._files.write(spare.descriptor, spare.path, text, 0)
            self._files.truncate(spare.descriptor, spare.path, len(text))
        except OSError as error:  # row: no space, or a failed write
            self._discard(following)
            self._keep_or_discard(spare, error)
            raise
        try:
            self._files.sync(spare.descriptor, spare.path)
            found = os.fstat(spare.descriptor)
            self._files.rename(spare.path, self._path)
        except OSError:  # rows: a failed fsync; a failed rename. Neither is tried again on this file.
            self._discard(following)
            self._discard(spare)
            raise
        self._on_disk, self._header, self._spare = (found.st_dev, found.st_ino), header, following
        self._close(spare)
        self._files.sync_directory(self._path.parent)  # row: a failed directory fsync. The next commit writes it again.

    # -- temporary files ------------------------------------------------------------------------------------------

    def _create(self) -> _Spare:
        """Make an empty temporary file. Raises OSError."""
        path = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}.tmp")
        return _Spare(path, self._files.create(path))

    def _allocate(self, spare: _Spare, size: int) -> None:
        """Make `size` bytes of a file ours on the disk, as far as the file system can promise that. Raises OSError."""
        if size > spare.allocated and self._files.allocate(spare.descriptor, spare.path, size):
            spare.allocated = size

    def _provide(self, size: int) -> None:
        """Have the next temporary file ready. Best effort: an admission asks for it again and is refused without it."""
        try:
            if self._spare is None:
                self._spare = self._create()
            self._allocate(self._spare, size)
        except OSError:
            return

    def _keep_or_discard(self, spare: _Spare, error: OSError) -> None:
        """Keep a file that only was too small: its blocks are the room for endings. The next commit overwrites it."""
        if error.errno in _NO_SPACE and self._spare is None:
            self._spare = spare
        else:
            self._discard(spare)

    def _discard(self, spare: _Spare | None) -> None:
        if spare is None:
            return
        self._close(spare)
        try:
            self._files.remove(spare.path)
        except OSError:
            return  # a start removes leftovers; nothing depends on it

    def _close(self, spare: _Spare) -> None:
        try:
            self._files.close(spare.descriptor, spare.path)
        except OSError:
            return  # it is fsynced or thrown away already

    def _remember(self) -> None:
        """Write the journal's id into the lock, once. Until that works, each commit tries again."""
        try:
            self._lock.remember(self._header.journal_id)
        except OSError:
            return  # only the difference between a first start and a lost journal hangs on it


def _generation_on_disk(path: Path) -> tuple[int, int, str, int] | None:
    """Device, inode, journal id and generation of what is in the journal's place; None where there is nothing.

    Raises JournalBroken for what cannot be looked at.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalBroken(f"{path} cannot be opened: {error.strerror}.") from None
    try:
        found = os.fstat(descriptor)
        if found.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)  # somebody of our own uid has widened it; a start would refuse it
        named = read_generation(os.pread(descriptor, _HEADER_BYTES, 0))
    except OSError as error:
        raise JournalBroken(f"{path} cannot be read: {error.strerror}.") from None
    finally:
        os.close(descriptor)
    return (found.st_dev, found.st_ino, *(named or ("", 0)))


def _refusal(error: OSError) -> NotStored:
    """The one place where an error of the disk becomes one of ours."""
    if error.errno in _NO_SPACE:
        return JournalFull("There is no space left for the journal.")
    return JournalBroken(f"The journal could not be written: {error.strerror or error}.")
