"""What is shown of a record: response types, and how they follow from the ledger's entries. Pure.

The six fields that a connector reads first, the rest beside them. Nothing here is a secret: the key is a salted digest,
the input was never kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Cause, Operation, Status

__all__ = ["EventsPage", "JobsPage", "RecordSummary", "RecordView", "events_page", "record_summary", "record_view"]


class RecordSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A record without its output."""

    action_id: str
    crew_id: str
    operation: Operation
    status: Status
    event_count: int
    cause: Cause | None
    error_type: str | None
    provider_started: bool
    worker_stopped: bool | None
    uncertain_outcome: bool
    finished_late: bool
    to_be_reconciled: bool
    accepted_at: str | None
    started_at: str | None
    ended_at: str | None
    timeout_ms: int | None
    cancel_reason: str | None
    cancelled_by: str | None
    events_dropped: int
    output_truncated: bool
    output_bytes: int | None
    request_hash: str
    hash_version: int
    key_digest: str | None
    trace_id: str | None
    span_id: str | None
    task_ids: tuple[str, ...]
    model_response_ids: tuple[str, ...]
    tool_names: tuple[str, ...]
    decisions: tuple[dict[str, Any], ...]


class RecordView(RecordSummary, frozen=True, kw_only=True):
    """A record. `output` is the object of a completed Action, else null."""

    output: dict[str, Any] | None


class EventsPage(msgspec.Struct, frozen=True, kw_only=True):
    """A record's events from a cursor on. `next_cursor` is the cursor of the page that follows."""

    action_id: str
    cursor: int
    next_cursor: int
    status: Status
    events: list[dict[str, Any]]


class JobsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Records in the order of their admission. `next`, given as `after`, asks for the page that follows."""

    jobs: list[RecordSummary]
    next: str | None


_COPIED = tuple(name for name in RecordSummary.__struct_fields__ if name != "event_count")


def record_summary(entry: Entry) -> RecordSummary:
    """Show an entry without its output."""
    return RecordSummary(**_copied(entry))


def record_view(entry: Entry) -> RecordView:
    """Show an entry. The output's stored bytes become part of the answer as they are."""
    output = entry.record.output
    raw: Any = None if output is None else msgspec.Raw(output)
    return RecordView(**_copied(entry), output=raw)


def events_page(entry: Entry, cursor: int, events: list[bytes]) -> list[bytes]:
    """Show encoded events, as they are, in a page: the parts of its encoded form, events not copied."""
    page = EventsPage(
        action_id=entry.record.action_id,
        cursor=cursor,
        next_cursor=entry.event_count,
        status=entry.record.status,
        events=[],
    )
    parts = [msgspec.json.encode(page).removesuffix(b"]}")]  # `events` is its last field
    for index, event in enumerate(events):
        if index:
            parts.append(b",")
        parts.append(event)
    return [*parts, b"]}"]


def _copied(entry: Entry) -> dict[str, Any]:
    record = entry.record
    fields: dict[str, Any] = {name: getattr(record, name) for name in _COPIED}
    fields["event_count"] = entry.event_count
    return fields
