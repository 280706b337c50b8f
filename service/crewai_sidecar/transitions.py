"""The changes a record can go through, each as one value that the store commits whole.

    accepted -> started -> (events)* -> ended -> tombstone

Nothing here writes or publishes; `store.commit` does both, in that order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from crewai_sidecar import codec
from crewai_sidecar.model import Cause, Ending, EventName, Operation, Record, Status, Tombstone, closes

__all__ = [
    "Update",
    "accepted",
    "archived",
    "ended",
    "extended",
    "is_effect_free",
    "started",
    "terminal_event",
    "with_evidence",
]

_EVIDENCE = 256
"""Most task ids, response ids and tool names kept of one record, each."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One change of one Action.

    `record` is the record afterwards (a Tombstone for an archived one), `events` are the encoded events it adds, and
    `urgent` lets the change use the room that was kept for it when the Action was admitted.
    """

    record: Record | Tombstone
    events: tuple[bytes, ...] = ()
    urgent: bool = False


def accepted(record: Record) -> Update:
    """Admit a new Action."""
    return Update(record)


def started(record: Record, *, at: str) -> Update:
    """Let the provider work begin: durable before the child gets its input."""
    data = {"status": Status.RUNNING, "operation": record.operation, "started_at": at}
    return Update(
        msgspec.structs.replace(record, started_at=at, provider_started=True),
        (codec.encode_event(EventName.STARTED, 0, data),),
        urgent=True,
    )


def extended(record: Record, events: tuple[bytes, ...], evidence: list[tuple[str, str]], dropped: int) -> Update:
    """Add events of the run, and what they say about tasks, model responses and tools."""
    return Update(with_evidence(record, evidence, dropped), events)


def with_evidence(record: Record, evidence: list[tuple[str, str]], dropped: int) -> Record:
    """Note evidence, pairs of a Record field (task_ids, model_response_ids, tool_names) and a text, and a count.

    `dropped` events more were not stored.
    """
    fields: dict[str, Any] = {}
    for name, text in evidence:
        known = fields.get(name, getattr(record, name))
        if text not in known and len(known) < _EVIDENCE:
            fields[name] = (*known, text)
    if dropped:
        fields["events_dropped"] = record.events_dropped + dropped
    return msgspec.structs.replace(record, **fields) if fields else record


def ended(record: Record, event_count: int, ending: Ending, *, at: str, effect_free: bool) -> Update:
    """Close a record.

    A completed one stores its output once and no event: the terminal event is composed of it when it is read.
    """
    closed = closes(record, ending, ended_at=at, effect_free=effect_free)
    if ending.status is Status.COMPLETED:
        return Update(closed, urgent=True)
    return Update(closed, (terminal_event(closed, ending, event_count),), urgent=True)


def terminal_event(record: Record, ending: Ending, sequence: int) -> bytes:
    """Write the `failed` or `cancelled` event of an ending."""
    data: dict[str, Any] = {"status": ending.status, "message": ending.message, "cause": ending.cause}
    if ending.error_type is not None:
        data["error_type"] = ending.error_type
    data["provider_started"] = ending.provider_started
    if ending.worker_stopped is not None:
        data["worker_stopped"] = ending.worker_stopped
    if ending.finished_late:
        data["finished_late"] = True
    if ending.cause is Cause.RESTART:
        data["uncertain_outcome"] = True
    data["to_be_reconciled"] = record.to_be_reconciled
    return codec.encode_event(EventName(ending.status.value), sequence, data)


def archived(record: Record, *, at: str) -> Update:
    """Replace a closed record by its tombstone."""
    return Update(
        Tombstone(
            action_id=record.action_id,
            request_hash=record.request_hash,
            hash_version=record.hash_version,
            status=record.status,
            archived_at=at,
        )
    )


def is_effect_free(record: Record, effect_free_crews: Collection[str]) -> bool:
    """Whether the Action's work changes nothing outside, by its operation or by the operator's word for its crew."""
    return record.operation is Operation.KNOWLEDGE_QUERY or record.crew_id in effect_free_crews
