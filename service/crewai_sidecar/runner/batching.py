"""From what a child says to what is stored: joined chunks, bounded events, and the evidence in them.

Chunks of one task and agent that wait for the same commit become one event, so a burst costs little and a quiet stream
is not delayed. Beyond the bounds an event is counted, never an error: a run does not fail for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from crewai_sidecar import codec, jsontext
from crewai_sidecar.frames import Event
from crewai_sidecar.model import EventName

__all__ = ["JOINED_BYTES", "Batch", "Pending"]

JOINED_BYTES = 4096
"""Bytes of text, as encoded, that joined chunks carry at the most."""

_FROM_CHILD = frozenset(EventName) - {
    EventName.STARTED,
    EventName.COMPLETED,
    EventName.FAILED,
    EventName.CANCELLED,
}
"""What a child may say. The other events are the service's own word."""

_EVIDENCE = {"task_id": "task_ids", "response_id": "model_response_ids", "tool_name": "tool_names"}
"""Which data of an event is kept in which field of the record: ids and names, no text."""

_NAME_LENGTH = 256

_OVERHEAD = 64
"""Bytes that an event counts for besides its text."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one commit takes: encoded events, evidence for the record, and how many events were dropped."""

    events: tuple[bytes, ...]
    evidence: list[tuple[str, str]]
    dropped: int

    def __bool__(self) -> bool:
        return bool(self.events or self.evidence or self.dropped)


class Pending:
    """Events of one run that no commit has taken yet."""

    def __init__(self, *, max_events: int, max_event_bytes: int, most: int) -> None:
        self._waiting: deque[tuple[str, dict[str, Any], int]] = deque()  # name, data, bytes that it counts for
        self._evidence: list[tuple[str, str]] = []
        self._dropped = 0
        self._last_slot = max_events - 1
        self._max_event_bytes = max_event_bytes
        self._join_bytes = min(JOINED_BYTES, max_event_bytes // 2)
        self._most = most
        self._last_bytes = 0
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._waiting or self._evidence or self._dropped)

    def add(self, event: Event) -> None:
        """Take an event of the child, joining it with the chunk before it where that is the same stream."""
        if event.name not in _FROM_CHILD:
            self._dropped += 1
            return
        self._note(event.data)
        content = event.data.get("content")
        size = jsontext.length(content) if isinstance(content, str) else 0
        self.size += size + _OVERHEAD
        if event.name == EventName.CHUNK and self._waiting and self._last_bytes + size <= self._join_bytes:
            name, last, counted = self._waiting[-1]
            joined = last.get("content")
            if (
                name == EventName.CHUNK
                and isinstance(content, str)
                and isinstance(joined, str)
                and {**last, "content": content} == event.data
            ):
                last["content"] = joined + content
                self._waiting[-1] = (name, last, counted + size + _OVERHEAD)
                self._last_bytes += size
                return
        self._waiting.append((event.name, dict(event.data), size + _OVERHEAD))
        self._last_bytes = size

    def count(self, dropped: int) -> None:
        """Add to the number of events that are not stored."""
        self._dropped += dropped

    def take(self, event_count: int) -> Batch:
        """Encode what the next commit takes; sequences go on from `event_count`, the events that the record has."""
        events: list[bytes] = []
        while self._waiting and len(events) < self._most:
            name, data, counted = self._waiting.popleft()
            self.size -= counted
            if event_count + len(events) >= self._last_slot:
                self._dropped += 1
                continue
            encoded = codec.encode_event(name, event_count + len(events), data)
            if len(encoded) > self._max_event_bytes:
                self._dropped += 1
            else:
                events.append(encoded)
        batch = Batch(tuple(events), self._evidence, self._dropped)
        self._evidence, self._dropped = [], 0
        return batch

    def give_up(self, batch: Batch) -> None:
        """The disk does not take a batch: it and all that waits is dropped and counted; evidence waits for the next."""
        self._evidence = batch.evidence + self._evidence
        self._dropped += batch.dropped + len(batch.events) + len(self._waiting)
        self._waiting.clear()
        self.size = 0

    def rest(self) -> Batch:
        """Take what is left for the ending to say: evidence, and the count of all that was not stored."""
        self.give_up(Batch((), [], 0))
        batch = Batch((), self._evidence, self._dropped)
        self._evidence, self._dropped = [], 0
        return batch

    def _note(self, data: dict[str, Any]) -> None:
        for name, field in _EVIDENCE.items():
            text = data.get(name)
            if isinstance(text, str) and text and (field, text[:_NAME_LENGTH]) not in self._evidence:
                self._evidence.append((field, text[:_NAME_LENGTH]))
