"""Events as a page and as a stream.

A stream is a cursor on the record and nothing else: it looks, sends what is there, and waits for news. Events are
stored encoded, so a frame is three lines around bytes that exist already. A client that goes away ends its stream at
once, also while nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from crewai_sidecar.api.actions import action_id, admit, answer, disconnected, find
from crewai_sidecar.api.parts import AnyRequest, Parts, parts
from crewai_sidecar.api.wire import header, headers, query_integer
from crewai_sidecar.errors import CursorOutside
from crewai_sidecar.ledger import Entry
from crewai_sidecar.views import events_page

__all__ = ["EventStream", "events", "start_stream", "start_stream_alias"]

SEND_BYTES = 256 << 10
"""Bytes after which a send is full; a longer event is one send."""

HEARTBEAT = b": keep-alive\n\n"

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_NAME = re.compile(rb'\{"event":"([a-z_]+)"')


async def start_stream(request: AnyRequest) -> ASGIApp:
    """Admit an Action and send its events from the first to the ending. A repeat gets them all again."""
    admitted = await admit(request)
    return EventStream(parts(request), admitted.entry.record.action_id, 0)


async def start_stream_alias(request: AnyRequest) -> ASGIApp:
    """As `POST /jobs/stream`, for the operation run only."""
    admitted = await admit(request, alias=True)
    return EventStream(parts(request), admitted.entry.record.action_id, 0)


async def events(request: AnyRequest) -> ASGIApp:
    """Read a record's events from a cursor: a page, or with `Accept: text/event-stream` a stream up to the ending."""
    wanted = action_id(request)
    entry = find(request, wanted)
    cursor = query_integer(request, "cursor")
    streamed = b"text/event-stream" in b",".join(headers(request, b"accept")).lower()
    if cursor is None and streamed:
        return EventStream(parts(request), wanted, _after_last_event(request))
    cursor = cursor or 0
    if not 0 <= cursor <= entry.event_count:
        raise CursorOutside(f"The record has the cursors 0 to {entry.event_count}.")
    if streamed:
        return EventStream(parts(request), wanted, cursor)
    return _page(parts(request), entry, cursor)


def _page(service: Parts, entry: Entry, cursor: int) -> ASGIResponse:
    return answer(events_page(entry, cursor, service.store.events(entry, cursor)))


def _after_last_event(request: AnyRequest) -> int:
    """The cursor behind the event that a client saw last; 0 where it names none."""
    text = (header(request, b"last-event-id") or b"").strip()
    return int(text) + 1 if re.fullmatch(rb"[0-9]{1,18}", text) else 0


class EventStream:
    """An ASGI response that follows one record from a cursor to its ending."""

    def __init__(self, service: Parts, action_id: str, cursor: int) -> None:
        self._store = service.store
        self._metrics = service.metrics
        self._closing = service.closing
        self._heartbeat = service.heartbeat_seconds
        self._action_id = action_id
        self._cursor = cursor
        self._patience: asyncio.Timeout | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send), name=f"events {self._action_id}")
        gone = asyncio.create_task(disconnected(receive))
        closing = asyncio.create_task(self._closing.wait())
        closing.add_done_callback(self._hurry)
        try:
            with self._metrics.reading():
                await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                pump.result()
        finally:
            for task in (pump, gone, closing):
                task.cancel()
            await asyncio.wait({pump, gone, closing})

    async def _pump(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        while True:
            entry = self._store.find(self._action_id)
            if not isinstance(entry, Entry):  # archived meanwhile, so its ending was there to be read
                break
            found = self._store.events(entry, self._cursor)
            if found:
                await self._send_events(send, found)
            elif entry.record.ended:
                break
            elif self._closing.is_set():
                await _send(send, b": closing; go on with cursor=%d\n\n" % self._cursor)
                break
            elif not await self._news():
                await _send(send, HEARTBEAT)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Any, found: list[bytes]) -> None:
        """Send events as frames, many at a time; the cursor moves when they are on their way."""
        frames: list[bytes] = []
        size = 0
        for sequence, event in enumerate(found, start=self._cursor):
            frames.append(b"id: %d\nevent: %s\ndata: %s\n\n" % (sequence, _name(event), event))
            size += len(frames[-1])
            if size >= SEND_BYTES or sequence == self._cursor + len(found) - 1:
                await _send(send, b"".join(frames))
                frames, size = [], 0
        self._cursor += len(found)

    async def _news(self) -> bool:
        """Wait for the record's next change; False when a heartbeat is due. Nothing may be awaited before it."""
        try:
            async with asyncio.timeout(self._heartbeat) as self._patience:
                return await self._store.watch.changed(self._action_id)
        except TimeoutError:
            return self._closing.is_set()
        finally:
            self._patience = None

    def _hurry(self, _: object) -> None:
        """End the wait for news: the service closes. A send in progress goes on."""
        if self._patience is not None and not self._patience.expired():
            with contextlib.suppress(RuntimeError):  # the wait is just over
                self._patience.reschedule(asyncio.get_running_loop().time())


async def _send(send: Any, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _name(event: bytes) -> bytes:
    """Slice an event's name out of its encoded form; one that was written in another order is decoded for it."""
    match = _NAME.match(event)
    if match is not None:
        return match.group(1)
    name: str = msgspec.json.decode(event)["event"]
    return name.encode("ascii")
