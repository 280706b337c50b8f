"""The journal: lines that are on disk when it says so, and a lock that keeps it to one process.

    opened = open_journal(path, max_bytes=…, settled=…)
    lines = opened.lines                        # what a former process left
    opened.journal.start(fence)                 # the restart fence and a first checkpoint
    opened.journal.submit(Change(key, line))    # from any thread; `settled` says what became of it
    opened.journal.close()

Guarantees: a change for which `settled` says None survives any crash; one with an error is not there after the next
success; there is never part of one; of the changes of one key the last that was taken is there. What they rest on, the
bytes and the crash table are in FORMAT.md. This package stores lines and knows nothing of Actions but that each line
has its `action_id`.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path

from crewai_sidecar.errors import JournalRefused
from crewai_sidecar.journal._change import Change, Journal, NullObserver, Observer, Settled
from crewai_sidecar.journal._checkpoint import Header, parse
from crewai_sidecar.journal._disk import Place, Written
from crewai_sidecar.journal._files import Files, RealFiles
from crewai_sidecar.journal._lock import Lock, lock_path
from crewai_sidecar.journal._memory import MemoryJournal
from crewai_sidecar.journal._volume import check_directory, leftovers, make_durable, prepare_directory, read_journal
from crewai_sidecar.journal._writer import DurableJournal

__all__ = [
    "Change",
    "Files",
    "Journal",
    "NullObserver",
    "Observer",
    "Opened",
    "RealFiles",
    "Settled",
    "accept_loss",
    "memory_journal",
    "open_journal",
]


@dataclass(frozen=True, slots=True)
class Opened:
    """A journal that is ours now, and the lines that were in it."""

    journal: Journal
    lines: list[bytes]


def open_journal(
    path: Path,
    *,
    max_bytes: int,
    settled: Settled,
    files: Files | None = None,
    observer: Observer | None = None,
) -> Opened:
    """Check the volume, take the lock, read the journal, and remove what a killed process left beside it.

    Raises VolumeRefused, JournalLocked, JournalOverBound and JournalRefused; nothing was changed then, but that the
    lock file exists with mode 0600.
    """
    files = files or RealFiles()
    prepare_directory(path.parent, files)
    lock = Lock(path, files)
    try:
        found = read_journal(path, max_bytes, files)
        if found is None:
            header, lines, written = _fresh(path, lock), dict[str, bytes](), None
            make_durable(path.parent, files)
        else:
            text, status = found
            header, lines = parse(path, text)
            written = Written.of(status, text)
            _check_known(path, lock, header)
        for left in leftovers(path, files):
            with contextlib.suppress(OSError):  # it only takes space; the next start tries again
                files.remove(left)
    except BaseException:
        lock.release()
        raise
    journal = DurableJournal(
        Place(path, files, header, written),
        {key: (line,) for key, line in lines.items()},
        written.size if written else 0,
        lock=lock,
        max_bytes=max_bytes,
        settled=settled,
        observer=observer or NullObserver(),
    )
    return Opened(journal, list(lines.values()))


def memory_journal(settled: Settled) -> Opened:
    """Make a journal that does not outlive the process."""
    return Opened(MemoryJournal(settled), [])


def accept_loss(path: Path) -> None:
    """Accept that a journal is lost: the next start begins an empty one. What it had fenced is fenced no more.

    Raises JournalRefused when there is a journal, when no lock remembers one, or when a process owns it; VolumeRefused
    for a directory that would be refused at a start.
    """
    files = RealFiles()
    if not check_directory(path.parent, files) or not (lock_path(path).exists() or path.exists()):
        raise JournalRefused(
            path,
            "no journal was ever here, its lock file is missing",
            "Name the journal's path as AIP_CREWAI_STATE_FILE has it",
        )
    lock = Lock(path, files, make=False)
    try:
        if path.exists() or path.is_symlink():
            raise JournalRefused(path, "the journal is there", "There is no loss to accept")
        if lock.journal_id is None:
            raise JournalRefused(lock.path, "it remembers no journal, so none was lost", "Check the path")
        lock.forget()
    finally:
        lock.release()


def _fresh(path: Path, lock: Lock) -> Header:
    if lock.journal_id is not None:
        raise JournalRefused(
            path,
            f"the journal {lock.journal_id} is lost: its lock remembers it and the file is gone",
            f"Restore it from a backup, or accept that it is forgotten: crewai-sidecar journal accept-loss {path}",
        )
    return Header(secrets.token_hex(16), 0)


def _check_known(path: Path, lock: Lock, header: Header) -> None:
    if lock.journal_id not in (None, header.journal_id):
        raise JournalRefused(
            path,
            f"it is the journal {header.journal_id}, and its lock remembers {lock.journal_id}",
            f"Put the right file back; if this one is meant, empty {lock.path} while no sidecar runs",
        )
