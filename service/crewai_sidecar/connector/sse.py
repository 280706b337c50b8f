"""A parser of text/event-stream, after the standard's section "Interpreting an event stream".

It is fed bytes as they arrive, in any pieces, and gives out what is whole. A frame whose end never comes is dropped, as
the standard says: the reader asks for it again by its cursor.
"""

from __future__ import annotations

import re

import msgspec

__all__ = ["MAX_FRAME_BYTES", "FrameTooLarge", "Message", "Parser"]

MAX_FRAME_BYTES = 8 << 20
"""Bytes that one frame may have: over the largest event that the service can be set to (4 MiB), ASCII-escaped."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class FrameTooLarge(ValueError):
    """Raised for a frame over MAX_FRAME_BYTES: what follows it cannot be told apart any more."""


class Message(msgspec.Struct, frozen=True):
    """One dispatched frame. `event` is "message" where the frame names none, `id` the last id of the stream so far."""

    event: str
    data: str
    id: str | None


class Parser:
    """The state between two pieces of one stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._first_line = True
        self._line_feed_belongs_to_last_line = False
        self._size = 0
        self._event = ""
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, piece: bytes) -> list[Message]:
        """Take the next bytes and return the frames that are whole now.

        Raises FrameTooLarge, and UnicodeDecodeError for text that is not UTF-8.
        """
        if not piece:
            return []
        if self._line_feed_belongs_to_last_line and piece.startswith(b"\n"):
            piece = piece[1:]
        self._line_feed_belongs_to_last_line = False
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        # A carriage return at the very end ends its line now; the line feed that may come next is part of it.
        self._line_feed_belongs_to_last_line = piece.endswith(b"\r")
        messages = [message for line in lines if (message := self._line(line)) is not None]
        if self._size + len(self._rest) > MAX_FRAME_BYTES:
            raise FrameTooLarge(f"a frame has more than {MAX_FRAME_BYTES:,} bytes")
        return messages

    def _line(self, line: bytes) -> Message | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._dispatch()
        self._size += len(line)
        name, _, value = line.decode("utf-8").partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        return None  # comments, `retry` and unknown fields

    def _dispatch(self) -> Message | None:
        event, data = self._event, self._data
        self._event, self._data, self._size = "", [], 0
        return Message(event or "message", "\n".join(data), self._id) if data else None
