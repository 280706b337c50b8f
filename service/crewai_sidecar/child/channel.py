"""The child's end of its socket: events made plain and bounded, one frame at a time, from any thread.

Sending blocks while the service is behind: it is the child that waits then, and nobody else.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

from crewai_sidecar import frames, jsontext
from crewai_sidecar.child.plain import plain

__all__ = ["Channel", "bounded"]

_ENVELOPE = 96
"""Bytes of a stored event around its data: name, sequence, braces."""

_LEAST = 256
"""Bytes that content has in a chunk at least; the other fields are cut for it."""


class Channel:
    """Sends frames to the service. After `close` events are counted and no longer sent."""

    def __init__(self, stream: socket.socket, max_event_bytes: int) -> None:
        self.socket = stream
        self.dropped = 0
        self._max_data = max_event_bytes - _ENVELOPE
        self._open = True
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @property
    def is_ours(self) -> bool:
        """Whether this is the process of the run, and not a copy of it that the crew has forked."""
        return os.getpid() == self._owner

    def emit(self, name: str, data: dict[str, Any]) -> None:
        """Send an event; what is over the bound is split where it is a chunk and cut where it is not.

        Never raises: an event that cannot be sent is counted, and a run does not fail for it.
        """
        try:
            parts = [frames.frame(frames.Event(name=name, data=part)) for part in bounded(name, data, self._max_data)]
        except Exception:  # noqa: BLE001  # data of a crew: whatever is wrong with it is not the run's end
            parts = []
        with self._lock:
            if self._open and parts and self.is_ours:  # two writers would tear each other's frames
                with contextlib.suppress(OSError):  # the service has gone, and this process goes with it
                    for part in parts:
                        self.socket.sendall(part)
                    return
            self.dropped += 1

    def close(self) -> None:
        """Let no event follow: the result comes next."""
        with self._lock:
            self._open = False

    def send(self, message: frames.Ready | frames.Result) -> None:
        """Send one of the messages that are not events.

        Raises FrameError and ValueError as `frames.frame`, OSError when the service has gone.
        """
        text = frames.frame(message)
        with self._lock:
            self.socket.sendall(text)


def bounded(name: str, data: dict[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """Make one event's data plain and at most `most` bytes of JSON; a chunk becomes as many as its content needs."""
    clean, changed = plain(data)
    if changed:
        clean["sanitized"] = True
    size = len(jsontext.encode(clean))
    if size <= most:
        yield clean
        return
    content = clean.get("content")
    if name != "chunk" or not isinstance(content, str):
        yield _cut(clean, most)
        return
    rest = {key: value for key, value in clean.items() if key != "content"}
    rest = _cut(rest, max(0, most - _LEAST - len('"content":"",')))
    room = most - len(jsontext.encode({**rest, "content": ""}))
    for piece in _pieces(content, room):
        yield {**rest, "content": piece}


def _cut(data: dict[str, Any], most: int) -> dict[str, Any]:
    """Cut the largest members until the rest fits."""
    data = dict(data)
    while len(jsontext.encode(data)) > most:
        sizes = {key: len(jsontext.encode(value)) for key, value in data.items() if key != "sanitized"}
        largest = max(sizes, key=lambda key: sizes[key], default=None)
        data["sanitized"] = True
        if largest is None:
            return {}
        value = data[largest]
        if isinstance(value, str) and len(value) > 64:
            data[largest] = value[: len(value) // 2]
        elif len(largest) > 64 or sizes[largest] <= len("null"):
            del data[largest]
        else:
            data[largest] = None
    return data


def _pieces(text: str, room: int) -> Iterator[str]:
    """Split a text into pieces whose JSON form has at most `room` bytes beside its quotes."""
    if len(text) <= 1 or len(jsontext.encode(text)) - 2 <= room:
        yield text
        return
    middle = len(text) // 2
    yield from _pieces(text[:middle], room)
    yield from _pieces(text[middle:], room)
