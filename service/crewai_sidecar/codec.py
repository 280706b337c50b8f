"""Records and tombstones as lines of the journal, and events as bytes.

A line is one strict-JSON object in ASCII. Events and outputs are kept encoded, so a line is put together from bytes
that exist already. The fields are listed in journal/FORMAT.md; a field that this version does not know is carried
along as it was found.
"""

from __future__ import annotations

from typing import Any

import msgspec

from crewai_sidecar import jsontext
from crewai_sidecar.model import EventName, Record, Status, Tombstone

__all__ = ["InvalidLine", "decode_line", "encode_event", "encode_record", "encode_tombstone"]


class InvalidLine(ValueError):
    """Raised for a journal line that is neither a record nor a tombstone of this format."""


def encode_event(name: str, sequence: int, data: dict[str, Any]) -> bytes:
    """Write one event as it stands in page, stream and journal: `event`, `sequence`, `data`.

    Raises ValueError for data that is not strict JSON.
    """
    return b'{"event":"%s","sequence":%d,"data":%s}' % (name.encode("ascii"), sequence, jsontext.encode(data))


def encode_record(record: Record, events: list[bytes] | tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Write a record as the parts of one line. The event bytes are shared, not copied."""
    head = {
        name: value
        for name in _PLAIN
        if (value := getattr(record, name)) != _DEFAULTS.get(name, msgspec.NODEFAULT) or name in _ALWAYS
    }
    parts = [jsontext.encode(head)[:-1]]
    for name, raw in record.extra.items():
        parts += [b",", jsontext.encode(name), b":", raw]
    if record.output is not None:
        parts += [b',"output":', record.output]
    parts.append(b',"events":[')
    for index, event in enumerate(events):
        if index:
            parts.append(b",")
        parts.append(event)
    parts.append(b"]}")
    return tuple(parts)


def encode_tombstone(tombstone: Tombstone) -> tuple[bytes, ...]:
    """Write a tombstone as one line."""
    return (jsontext.encode({"tombstone": True, **msgspec.structs.asdict(tombstone)}),)


def decode_line(line: bytes) -> tuple[Record, list[bytes]] | Tombstone:
    """Read a line back.

    Raises InvalidLine for wrong or missing fields, for events whose sequence is not 0, 1, 2 …, and for an event after
    the ending.
    """
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        if "tombstone" in fields:
            del fields["tombstone"]
            return msgspec.convert({name: msgspec.json.decode(raw) for name, raw in fields.items()}, Tombstone)
        events = [bytes(raw) for raw in msgspec.json.decode(fields.pop("events", b"[]"), type=list[msgspec.Raw])]
        output = bytes(fields.pop("output")) if "output" in fields else None
        plain = {name: msgspec.json.decode(fields.pop(name)) for name in _PLAIN if name in fields}
        extra = {name: bytes(raw) for name, raw in fields.items()}
        record = msgspec.convert({**plain, "output": None, "extra": {}}, Record)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError) as error:
        raise InvalidLine(str(error)) from None
    _check_events(record, events)
    return msgspec.structs.replace(record, output=output, extra=extra), events


def _check_events(record: Record, events: list[bytes]) -> None:
    for expected, event in enumerate(events):
        try:
            found = msgspec.json.decode(event, type=_StoredEvent)
        except msgspec.MsgspecError as error:
            raise InvalidLine(f"event {expected} of {record.action_id}: {error}") from None
        if found.sequence != expected:
            raise InvalidLine(f"event {expected} of {record.action_id} has the sequence {found.sequence}")
    if record.ended and record.status is not Status.COMPLETED and not events:
        raise InvalidLine(f"{record.action_id} has ended without a terminal event")


class _StoredEvent(msgspec.Struct):
    event: EventName
    sequence: int
    data: dict[str, Any]


_PLAIN = tuple(name for name in Record.__struct_fields__ if name not in {"output", "extra"})
_ALWAYS = frozenset({"action_id", "crew_id", "operation", "request_hash", "hash_version", "status"})
_DEFAULTS: dict[str, Any] = {
    field.name: field.default for field in msgspec.structs.fields(Record) if field.default is not msgspec.NODEFAULT
}
