"""Following a streaming output: its chunks become events, then its result is the output.

A streaming output is CrewAI's own, or any iterable or async iterable of chunks with a `content`, and a `result`. A
plain generator counts too: what it returns is its result, and where it returns nothing, the text of its chunks.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from enum import Enum
from typing import Any

from crewai.types.streaming import StreamingOutputBase
from pydantic import BaseModel

from crewai_sidecar.child.crewai_adapter.stop import Stopper
from crewai_sidecar.child.crewai_adapter.stream import Feed

__all__ = ["follow", "follow_async", "is_async_stream", "is_stream"]

_MISSING = object()


def is_stream(value: Any) -> bool:
    """Whether an output is to be followed. `result` is looked up without being read: before the end it raises."""
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return True
    if isinstance(value, str | bytes | Mapping | BaseModel | list | tuple):
        return False
    iterable = hasattr(type(value), "__iter__") or hasattr(type(value), "__aiter__")
    return iterable and inspect.getattr_static(value, "result", _MISSING) is not _MISSING


def is_async_stream(value: Any, *, awaited: bool) -> bool:
    """Whether to iterate asynchronously: for what was awaited by preference, else only where there is no other way."""
    if not hasattr(type(value), "__aiter__"):
        return False
    return awaited or not hasattr(type(value), "__iter__")


def follow(value: Any, feed: Feed, stopper: Stopper) -> Any:
    """Read a stream to its end and return its result.

    Raises Stopped when the order came between two chunks, and whatever the crew raises.
    """
    reader = _Reader(value, feed)
    chunks: Iterator[Any] = iter(value)
    try:
        while True:
            stopper.check()
            try:
                reader.take(next(chunks))
            except StopIteration as end:
                return reader.result(end.value)
    finally:
        if stopper.ordered:
            _close(value)


async def follow_async(value: Any, feed: Feed, stopper: Stopper) -> Any:
    """As `follow`; the order to stop cancels the task that this runs in."""
    reader = _Reader(value, feed)
    chunks: AsyncIterator[Any] = aiter(value)
    try:
        async for chunk in chunks:
            reader.take(chunk)
            stopper.check()
        result = reader.result(None)
        return await result if inspect.isawaitable(result) else result
    finally:
        if stopper.ordered and callable(close := getattr(value, "aclose", None)):
            await close()


class _Reader:
    """What is taken from one stream."""

    def __init__(self, value: Any, feed: Feed) -> None:
        self._value = value
        self._feed = feed
        self._texts: list[str] = []
        self._silent = _fed_by_bus(value)
        if not self._silent:
            feed.follow()

    def take(self, chunk: Any) -> None:
        content = chunk if isinstance(chunk, str) else _field(chunk, "content")
        if isinstance(content, str):
            self._texts.append(content)
        if not self._silent:
            self._feed.chunk({"content": "" if content is None else content, **_fields(chunk)})

    def result(self, returned: Any) -> Any:
        if inspect.isgenerator(self._value) or inspect.isasyncgen(self._value):
            return "".join(self._texts) if returned is None else returned
        return self._value.result


def _fed_by_bus(value: Any) -> bool:
    """Whether each chunk of a stream has come by the bus already: CrewAI's own streams are made of its events."""
    if not isinstance(value, StreamingOutputBase):
        return False
    source = value._sync_iterator or value._async_iterator
    frame = getattr(source, "gi_frame", None) or getattr(source, "ag_frame", None)
    return frame is None or str(frame.f_globals.get("__name__", "")).startswith("crewai.")


def _field(chunk: Any, name: str) -> Any:
    return chunk.get(name) if isinstance(chunk, Mapping) else getattr(chunk, name, None)


def _fields(chunk: Any) -> dict[str, Any]:
    """Return the simple fields of a chunk beside its content: scalars, and small objects and lists of them."""
    if isinstance(chunk, str):
        return {}
    if isinstance(chunk, Mapping):
        members = dict(chunk)
    elif isinstance(fields := getattr(type(chunk), "model_fields", None), Mapping):
        members = {name: getattr(chunk, name, None) for name in fields}
    else:
        slots = [name for kind in type(chunk).__mro__ for name in getattr(kind, "__slots__", ())]
        members = {**{name: getattr(chunk, name, None) for name in slots}, **getattr(chunk, "__dict__", {})}
    return {
        name: value
        for name, value in members.items()
        if isinstance(name, str) and name != "content" and not name.startswith("_") and _is_simple(value)
    }


def _is_simple(value: Any, depth: int = 3) -> bool:
    if value is None or isinstance(value, bool | int | float | str | Enum):
        return True
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        return len(value) <= 64 and all(_is_simple(one, depth - 1) for one in value.values())
    if isinstance(value, list | tuple):
        return len(value) <= 64 and all(_is_simple(one, depth - 1) for one in value)
    return isinstance(value, BaseModel)


def _close(value: Any) -> None:
    close = getattr(value, "close", None)
    if callable(close):
        close()
