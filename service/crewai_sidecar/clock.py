"""Time, as a value that is handed in: monotonic for durations, UTC for what is written down.

Wall clocks jump; nothing here is ever measured with one. Tests hand in a clock of their own.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "SystemClock", "timestamp"]


class Clock(Protocol):
    """What the service asks of time."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start that never go back."""

    def utc(self) -> datetime:
        """The present moment, aware, in UTC."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def utc(self) -> datetime:
        return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Write a moment as RFC 3339 in UTC with microseconds, the one form of times in records, views and logs."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
