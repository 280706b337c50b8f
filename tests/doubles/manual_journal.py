"""A journal whose disk answers when the test says so."""

from __future__ import annotations

from collections.abc import Callable

from crewai_sidecar.errors import NotStored
from crewai_sidecar.journal import Change

Settled = Callable[[list[tuple[Change, NotStored | None]]], None]


class ManualJournal:
    """Keeps what is submitted until `settle` or `refuse` is called."""

    identity = "ab" * 16
    durable = True
    size = 0
    trouble: str | None = None

    def __init__(self, settled: Settled) -> None:
        self._settled = settled
        self.waiting: list[Change] = []
        self.written: list[Change] = []
        self.start_refusal: NotStored | None = None
        self.fence: list[Change] = []

    def submit(self, change: Change) -> None:
        self.waiting.append(change)

    def start(self, fence: list[Change]) -> NotStored | None:
        self.fence = fence
        self.trouble = self.start_refusal.code if self.start_refusal else None
        return self.start_refusal

    def close(self) -> None:
        self.settle()

    def settle(self) -> None:
        """The disk takes all that waits, as one batch."""
        batch, self.waiting = self.waiting, []
        self.written += batch
        self.trouble = None
        self._settled([(change, None) for change in batch])

    def refuse(self, error: NotStored) -> None:
        """The disk takes nothing of what waits."""
        batch, self.waiting = self.waiting, []
        self.trouble = error.code
        self._settled([(change, error) for change in batch])
