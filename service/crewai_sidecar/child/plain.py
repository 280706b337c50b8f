"""Makes any value strict JSON, and says whether anything had to be changed for it.

A crew's output, a tool call or a streamed chunk may hold NaN, lone surrogates, bytes, models, cycles or anything else
that Python knows. What is sent to the service is plain: the journal, the connector and the caller can all read it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from typing import Any

from crewai_sidecar import jsontext

__all__ = ["MAX_NODES", "Plain", "class_name", "clean_text", "plain"]

MAX_NODES = 2_500_000
"""Values in one value. More than that are over any bound in bytes that an output may have."""

_DEPTH = 90
"""Levels that are kept: what is written must be readable again (jsontext.MAX_DEPTH), inside a few levels of our own."""

_NAME_LENGTH = 128
_NAME_BYTES = 256

_BITS = 14_280
"""An integer of so many bits has at most 4,300 digits, which is what Python turns into text."""


def plain(value: Any) -> tuple[Any, bool]:
    """Return the value as strict JSON, and whether something in it had to be changed."""
    walk = Plain()
    return walk.value(value), walk.changed


def class_name(value: Any) -> str:
    """Name a value's class in at most 128 characters and 256 bytes of JSON, all of them such as a name has.

    The name is taken from the class itself: a metaclass may answer `__name__` with anything, or raise.
    """
    name = str.__str__(type.__dict__["__name__"].__get__(type(value)))
    name = "".join(one if f"_{one}".isidentifier() else "_" for one in name[:_NAME_LENGTH])
    while jsontext.length(name) > _NAME_BYTES:
        name = name[:-1]
    return name or "_"


def clean_text(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot carry, by U+FFFD."""
    if text.isascii():
        return str(text)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Plain:
    """One walk through one value. `changed` says whether it lost or replaced anything."""

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self.changed = False
        self._left = max_nodes
        self._path: set[int] = set()

    def value(self, value: Any) -> Any:
        """Return one value as strict JSON."""
        self._left -= 1
        if value is None or value is True or value is False:
            return value
        if self._left < 0:
            return self._lost()
        if isinstance(value, str):
            return self._text(value.value if isinstance(value, Enum) and isinstance(value.value, str) else value)
        if isinstance(value, Enum):
            return self.value(value.value)
        if isinstance(value, int):
            return int(value) if value.bit_length() < _BITS else self._lost()
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else self._lost()
        if isinstance(value, bytes | bytearray | memoryview):
            self.changed = True
            return bytes(value).decode("utf-8", "replace")
        return self._container(value)

    def _container(self, value: Any) -> Any:
        if id(value) in self._path or len(self._path) >= _DEPTH:
            return self._lost()
        self._path.add(id(value))
        try:
            members = _members(value)
            if members is not None:
                return {self._key(key): self.value(one) for key, one in members.items()}
            if isinstance(value, Sequence):
                return [self.value(one) for one in value]
            self.changed = True
            if isinstance(value, Set):
                return [self.value(one) for one in value]
            return self._text(str(value))
        except Exception:  # noqa: BLE001  # a crew's object may do anything when it is looked at
            self.changed = True
            return class_name(value)
        finally:
            self._path.discard(id(value))

    def _key(self, key: Any) -> str:
        if isinstance(key, str):
            return self._text(key)
        self.changed = True
        return self._text(str(key))

    def _text(self, text: str) -> str:
        clean = clean_text(text)
        if clean != text:
            self.changed = True
        return clean

    def _lost(self) -> None:
        self.changed = True


def _members(value: Any) -> Mapping[Any, Any] | None:
    """Members of what is an object in JSON: mappings, dataclasses, and models, field by field.

    A model's own dump is not used: it empties a field whose declared type is a base class, and fails as a whole for
    one bad field (facts: `model_dump(mode="json")["pydantic"]` is `{}`).
    """
    if isinstance(value, Mapping):
        return value
    fields = getattr(type(value), "model_fields", None)
    if isinstance(fields, Mapping):
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return {**{name: getattr(value, name) for name in fields}, **extra}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None
