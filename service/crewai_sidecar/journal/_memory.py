"""A journal without a disk, for loopback development."""

from __future__ import annotations

import secrets

from crewai_sidecar.errors import NotStored
from crewai_sidecar.journal._change import Change, Settled

__all__ = ["MemoryJournal"]


class MemoryJournal:
    """Settles every change at once, on the caller's thread; the lines themselves live in the ledger only."""

    durable = False
    size = 0
    trouble: str | None = None

    def __init__(self, settled: Settled) -> None:
        self.identity = secrets.token_hex(16)
        self._settled = settled

    def submit(self, change: Change) -> None:
        self._settled([(change, None)])

    def start(self, fence: list[Change]) -> NotStored | None:
        return None

    def close(self) -> None:
        pass
