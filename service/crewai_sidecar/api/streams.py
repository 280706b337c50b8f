"""Events as a page and as a stream.

A stream is a cursor on the record and nothing else: it looks, sends what is there, and waits for news. Events are
stored encoded, so a frame is three lines around bytes that exist already. A client that goes away ends its stream at
once, also while nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from crewai_sidecar.api.actions import action_id, admit, disconnected, find
from crewai_sidecar.api.parts import AnyRequest, Parts, parts
from crewai_sidecar.api.wire import headers, integer, query_integer
from crewai_sidecar.errors import CursorOutside, InvalidFields
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
    return EventStream(parts(request), admitted.entry, 0)


async def start_stream_alias(request: AnyRequest) -> ASGIApp:
    """As `POST /jobs/stream`, for the operation run only."""
    admitted = await admit(request, alias=True)
    return EventStream(parts(request), admitted.entry, 0)


async def events(request: AnyRequest) -> ASGIApp:
    """Read a record's events from a cursor: a page, or with `Accept: text/event-stream` a stream up to the ending."""
    entry = find(request, action_id(request))
    cursor = query_integer(request, "cursor")
    streamed = b"text/event-stream" in b",".join(headers(request, b"accept")).lower()
    if cursor is None:
        cursor = _after_last_event(request) if streamed else 0
    if not 0 <= cursor <= entry.event_count:
        raise CursorOutside(f"The record has the cursors 0 to {entry.event_count}.")
    if streamed:
        return EventStream(parts(request), entry, cursor)
    return Page(events_page(entry, cursor, parts(request).store.events(entry, cursor)))


def _after_last_event(request: AnyRequest) -> int:
    """The cursor behind the event that a client saw last; 0 where it names none, negative where there can be none.

    Raises InvalidFields for what is no integer, and where there are two headers.
    """
    values = headers(request, b"last-event-id")
    if len(values) > 1:
        raise InvalidFields(f"The header Last-Event-ID was sent {len(values)} times.")
    text = b"".join(values).strip()
    if not text:
        return 0
    last = integer(text.decode("latin-1"))
    if last is None:
        raise InvalidFields("The header Last-Event-ID must be an integer, or empty.")
    return last + 1 if last >= 0 else last


class Page:
    """An ASGI response of encoded parts: it holds no copy of them, and a slow reader has one send at a time."""

    def __init__(self, encoded: list[bytes]) -> None:
        self._encoded = encoded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = b"%d" % sum(map(len, self._encoded))
        fields = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        for body in _full(self._encoded):
            await _send(send, body)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class EventStream:
    """An ASGI response that follows one record from a cursor to its ending."""

    def __init__(self, service: Parts, entry: Entry, cursor: int) -> None:
        self._entry = entry  # also when it is archived meanwhile: what was found is sent to its end
        self._store = service.store
        self._metrics = service.metrics
        self._closing = service.closing
        self._heartbeat = service.heartbeat_seconds
        self._action_id = entry.record.action_id
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
            found = self._store.events(self._entry, self._cursor)
            if found:
                await self._send_events(send, found)
            elif self._entry.record.ended:
                break
            elif self._closing.is_set():
                await _send(send, b": closing; go on with cursor=%d\n\n" % self._cursor)
                break
            elif not await self._news():
                await _send(send, HEARTBEAT)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Any, found: list[bytes]) -> None:
        """Send events as frames, many at a time; the cursor moves when they are on their way."""
        frames = (
            b"id: %d\nevent: %s\ndata: %s\n\n" % (sequence, _name(event), event)
            for sequence, event in enumerate(found, start=self._cursor)
        )
        for body in _full(frames):
            await _send(send, body)
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


def _full(encoded: Iterable[bytes]) -> Iterator[bytes]:
    """Join bytes until a send is full."""
    joined: list[bytes] = []
    size = 0
    for one in encoded:
        joined.append(one)
        size += len(one)
        if size >= SEND_BYTES:
            yield b"".join(joined)
            joined, size = [], 0
    if joined:
        yield b"".join(joined)


async def _send(send: Any, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _name(event: bytes) -> bytes:
    """Slice an event's name out of its encoded form; one that was written in another order is decoded for it."""
    match = _NAME.match(event)
    if match is not None:
        return match.group(1)
    name: str = msgspec.json.decode(event)["event"]
    return name.encode("ascii")
