"""The text of a checkpoint: a header line, a line for each record, an end line. See FORMAT.md."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from crewai_sidecar import jsontext
from crewai_sidecar.errors import JournalRefused

__all__ = ["FORMAT", "VERSION", "Header", "compose", "parse"]

FORMAT = "crewai-sidecar-journal"
VERSION = 1

_RESTORE = "Keep a copy and restore the journal from a backup; nothing was changed"
_KNOWN = ("format", "version", "journal_id", "generation", "records")


@dataclass(frozen=True, slots=True)
class Header:
    """What the first line says. `extra` are fields of a newer version, kept as they were."""

    journal_id: str
    generation: int
    extra: dict[str, Any] = field(default_factory=dict)

    def next(self) -> Header:
        """The header of the checkpoint after this one."""
        return replace(self, generation=self.generation + 1)


def compose(header: Header, lines: Iterable[tuple[bytes, ...]], count: int) -> bytes:
    """Write a checkpoint of `count` lines, each given as its parts."""
    first = {
        "format": FORMAT,
        "version": VERSION,
        "journal_id": header.journal_id,
        "generation": header.generation,
        "records": count,
        **header.extra,
    }
    parts = [jsontext.encode(first), b"\n"]
    for line in lines:
        parts += line
        parts.append(b"\n")
    body = b"".join(parts)
    end = {"end": True, "records": count, "crc32": f"{zlib.crc32(body):08x}"}
    return body + jsontext.encode(end) + b"\n"


def parse(path: Path, text: bytes) -> tuple[Header, dict[str, bytes]]:
    """Read a checkpoint back: its header, and its lines by Action ID in their order.

    Raises JournalRefused, which names the line or the offset, for anything that `compose` does not write.
    """
    if not text:
        raise JournalRefused(path, "the journal is empty", _RESTORE)
    lines = text.split(b"\n")
    header, count = _header(path, lines[0])
    if lines[-1]:
        raise JournalRefused(
            path, f"the journal is cut, or goes on after its end, at byte {len(text) - len(lines[-1])}", _RESTORE
        )
    if len(lines) < 3 or not _is_end(lines[-2]):
        raise JournalRefused(path, f"the journal has no end line: it is cut at byte {len(text)}", _RESTORE)
    _check_end(path, lines[-2], text, count, len(lines) - 3)
    records: dict[str, bytes] = {}
    for number, line in enumerate(lines[1:-2], start=2):
        try:
            key = msgspec.json.decode(line, type=_Keyed).action_id
        except msgspec.MsgspecError as error:
            raise JournalRefused(path, f"line {number} is not a record ({error})", _RESTORE) from None
        if key in records:
            raise JournalRefused(path, f"line {number} has the Action ID of an earlier line", _RESTORE)
        records[key] = line
    return header, records


class _Keyed(msgspec.Struct):
    action_id: str


def _header(path: Path, line: bytes) -> tuple[Header, int]:
    if line.lstrip().startswith(b"["):
        raise JournalRefused(
            path, "it is a JSON array, the journal of another sidecar; this version cannot import it", _RESTORE
        )
    try:
        fields = jsontext.decode(line)
    except jsontext.InvalidJson:
        fields = None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise JournalRefused(path, "line 1 is not the header of a crewai-sidecar journal", _RESTORE)
    if type(fields.get("version")) is not int or fields["version"] != VERSION:
        raise JournalRefused(
            path,
            f"it has format version {fields.get('version')!r} and this program reads version {VERSION}",
            "Start the version of crewai-sidecar that wrote it",
        )
    journal_id, generation, count = fields.get("journal_id"), fields.get("generation"), fields.get("records")
    if not (isinstance(journal_id, str) and len(journal_id) == 32 and set(journal_id) <= set("0123456789abcdef")):
        raise JournalRefused(path, "line 1 has no journal id", _RESTORE)
    if type(generation) is not int or type(count) is not int or generation < 1 or count < 0:
        raise JournalRefused(path, "line 1 has no generation or no count of records", _RESTORE)
    extra = {name: value for name, value in fields.items() if name not in _KNOWN}
    return Header(journal_id, generation, extra), count


def _is_end(line: bytes) -> bool:
    return line.startswith(b'{"end":true,')


def _check_end(path: Path, line: bytes, text: bytes, header_count: int, found: int) -> None:
    try:
        end = jsontext.decode(line)
        claimed, count = int(end["crc32"], 16), end["records"]
    except (jsontext.InvalidJson, KeyError, TypeError, ValueError):
        raise JournalRefused(path, "its end line cannot be read", _RESTORE) from None
    if not count == header_count == found:
        raise JournalRefused(
            path, f"it has {found} records where its header says {header_count} and its end line {count}", _RESTORE
        )
    if zlib.crc32(memoryview(text)[: len(text) - len(line) - 1]) != claimed:
        raise JournalRefused(path, "its checksum is wrong: it was changed or has rotted", _RESTORE)
