"""Reading events: a reader is a cursor on an entry and, while it waits, one future.

No reader has a queue, so a slow one costs nothing and a dropped one leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache

from crewai_sidecar import codec, jsontext
from crewai_sidecar.model import EventName
from crewai_sidecar.transitions import Update

__all__ = ["MAX_COMPLETED_BYTES", "Watch", "completed_event"]

MAX_COMPLETED_BYTES = (1 << 20) - 256
"""Bytes of a composed `completed` event. With its SSE field names it stays below the connector's 1 MiB a frame."""


class Watch:
    """Wakes whoever waits for news of an Action."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    @property
    def readers(self) -> int:
        """Readers that wait at this moment."""
        return sum(map(len, self._waiting.values()))

    def wake(self, update: Update) -> None:
        """Tell the readers of an Action that it has changed."""
        for future in self._waiting.pop(update.record.action_id, ()):
            if not future.done():
                future.set_result(None)

    async def changed(self, action_id: str, seconds: float | None = None) -> bool:
        """Wait for the next change of an Action; False when `seconds` pass without one.

        Call it in the same turn of the loop in which the entry was looked at: no change can be missed then.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(action_id, set())
        waiting.add(future)
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(action_id) is waiting:
                del self._waiting[action_id]
        return True


def completed_event(output: bytes, sequence: int, limit: int = MAX_COMPLETED_BYTES) -> bytes:
    """Compose the terminal event of a completed record from its stored output.

    An output that would make the event longer than `limit` bytes is cut here, and only here: `raw` first, then the
    other parts are left out. `output_truncated` says so; the record itself has the output whole.
    """
    whole = b'{"event":"completed","sequence":%d,"data":%s}' % (sequence, output)
    return whole if len(whole) <= limit else _cut(output, sequence, limit)


@lru_cache(maxsize=4)  # tens of milliseconds for a long text, and many readers may want the same one
def _cut(output: bytes, sequence: int, limit: int) -> bytes:
    fields = jsontext.decode(output)
    short = {"raw": fields.get("raw"), "token_usage": fields.get("token_usage", {}), "tasks_output": []}
    cut: dict[str, object] = {**fields, "output_truncated": True, "output_bytes": len(output)}
    for candidate in (cut, {**short, "output_truncated": True, "output_bytes": len(output)}):
        raw = candidate["raw"] if isinstance(candidate.get("raw"), str) else ""
        candidate["raw"] = ""
        room = limit - len(codec.encode_event(EventName.COMPLETED, sequence, candidate))
        if room >= 0:
            candidate["raw"] = _fitting(str(raw), room)
            return codec.encode_event(EventName.COMPLETED, sequence, candidate)
    return codec.encode_event(
        EventName.COMPLETED, sequence, {"raw": "", "token_usage": {}, "tasks_output": [], "output_truncated": True}
    )


def _fitting(text: str, room: int) -> str:
    """Cut a text so that its ASCII JSON form takes at most `room` bytes more than an empty one."""
    low, high = 0, min(len(text), room)
    while low < high:
        middle = (low + high + 1) // 2
        if jsontext.length(text[:middle]) <= room:
            low = middle
        else:
            high = middle - 1
    return text[:low]
