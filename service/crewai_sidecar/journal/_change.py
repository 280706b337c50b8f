"""The values that go into a journal and come out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from crewai_sidecar.errors import NotStored

__all__ = ["Change", "Journal", "NullObserver", "Observer", "Settled"]


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """The new line of one key.

    `line` has the parts of one JSON object, ASCII and without a newline; they are kept by reference. `room` is the
    number of bytes to keep free for this key's future, 0 once it has ended. An `urgent` change may spend kept room.
    """

    key: str
    line: tuple[bytes, ...]
    room: int = 0
    urgent: bool = False


Settled = Callable[[list[tuple[Change, NotStored | None]]], None]
"""Called once for each batch, in order, when it is certain what became of it. On the writer thread."""


class Observer(Protocol):
    """Told of every checkpoint."""

    def committed(self, seconds: float, changes: int, bytes_: int) -> None:
        """A checkpoint of `bytes_` is durable."""

    def failed(self, kind: str) -> None:
        """A checkpoint was refused; `kind` is the code of the error."""


class NullObserver:
    """Tells nobody."""

    def committed(self, seconds: float, changes: int, bytes_: int) -> None:
        pass

    def failed(self, kind: str) -> None:
        pass


class Journal(Protocol):
    """A place where lines become durable."""

    @property
    def identity(self) -> str:
        """32 lowercase hex digits, made once."""

    @property
    def durable(self) -> bool:
        """Whether it outlives the process."""

    @property
    def size(self) -> int:
        """Bytes on disk."""

    @property
    def trouble(self) -> str | None:
        """Code of the last commit's failure; None after a success."""

    def submit(self, change: Change) -> None:
        """Hand a change over, from any thread, without waiting for the disk."""

    def start(self, fence: list[Change]) -> NotStored | None:
        """Write the restart fence and a checkpoint, then begin to take changes. Returns what was not stored."""

    def close(self) -> None:
        """Settle what was submitted and give everything back."""
