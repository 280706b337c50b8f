"""The values of the service: operations, records, tombstones, and how a record ends (deploy/guide/contract.md)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

__all__ = [
    "CONTROL_OPERATIONS",
    "TERMINAL_EVENTS",
    "Cause",
    "Ending",
    "EventName",
    "Operation",
    "Record",
    "Status",
    "Tombstone",
    "closes",
]


class Operation(StrEnum):
    """What an Action may ask of a crew: the operations that start work."""

    RUN = "run"
    BATCH_RUN = "batch_run"
    REPLAY = "replay"
    TRAIN = "train"
    TEST = "test"
    KNOWLEDGE_QUERY = "knowledge_query"
    MEMORY_RESET = "memory_reset"


CONTROL_OPERATIONS = ("status", "events", "cancel")
"""Operations of the AIP connector that read or stop; they are never admitted as work."""


class Status(StrEnum):
    """A record's state on the wire."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Cause(StrEnum):
    """Why a record ended without a result."""

    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    WORKER_LOST = "worker_lost"
    SHUTDOWN = "shutdown"
    RESTART = "restart"


class EventName(StrEnum):
    """The whole list of event names."""

    STARTED = "started"
    CHUNK = "chunk"
    TASK_STARTED = "task_started"
    TASK_COMPLETED = "task_completed"
    TOOL_STARTED = "tool_started"
    TOOL_FINISHED = "tool_finished"
    MODEL_CALLED = "model_called"
    INPUT_COMPLETED = "input_completed"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL_EVENTS = frozenset({EventName.COMPLETED, EventName.FAILED, EventName.CANCELLED})


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one Action, without its events.

    Times are RFC 3339 texts in UTC. `output` is the encoded JSON object of a completed Action, kept as bytes. `extra`
    holds fields that this version does not know, encoded, so that they survive a rewrite.
    """

    action_id: str
    crew_id: str
    operation: Operation
    request_hash: str
    hash_version: int
    key_digest: str | None = None
    timeout_ms: int | None = None
    trace_id: str | None = None
    span_id: str | None = None
    accepted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    status: Status = Status.RUNNING
    cause: Cause | None = None
    error_type: str | None = None
    provider_started: bool = False
    worker_stopped: bool | None = None
    uncertain_outcome: bool = False
    finished_late: bool = False
    to_be_reconciled: bool = False
    cancel_reason: str | None = None
    cancelled_by: str | None = None
    task_ids: tuple[str, ...] = ()
    model_response_ids: tuple[str, ...] = ()
    tool_names: tuple[str, ...] = ()
    events_dropped: int = 0
    output_truncated: bool = False
    output_bytes: int | None = None
    decisions: tuple[dict[str, Any], ...] = ()
    output: bytes | None = None
    extra: dict[str, bytes] = {}

    @property
    def ended(self) -> bool:
        """Whether the record has its ending."""
        return self.status is not Status.RUNNING


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of an archived Action: enough to answer 410 and never to run it again."""

    action_id: str
    request_hash: str
    hash_version: int
    status: Status
    archived_at: str


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, as the runner or the restart fence saw it. One row of the table of endings follows from it."""

    status: Status
    cause: Cause | None = None
    provider_started: bool = True
    error_type: str | None = None
    worker_stopped: bool | None = None
    finished_late: bool = False
    cancel_reason: str | None = None
    cancelled_by: str | None = None
    output: bytes | None = None
    output_truncated: bool = False
    output_bytes: int | None = None

    @property
    def uncertain_outcome(self) -> bool:
        """Set by the restart fence only (the seed)."""
        return self.cause is Cause.RESTART

    def to_be_reconciled(self, *, effect_free: bool) -> bool:
        """Whether an operator has to find out what happened at the provider.

        So it is wherever the provider had started and no result was kept, except for work that has no effects.
        """
        return self.status is not Status.COMPLETED and self.provider_started and not effect_free

    @property
    def message(self) -> str:
        """The constant sentence of the terminal event. Never a text of the crew: it may carry a prompt or a secret."""
        if self.cause is None:
            return "The run completed."
        if not self.provider_started:
            return _NOT_STARTED[self.cause]
        return _STARTED[self.cause]


_STARTED = {
    Cause.EXCEPTION: "The crew raised an exception. Reconcile the Action before any new one.",
    Cause.TIMEOUT: "The operation timeout passed and the run was stopped. Reconcile the Action before any new one.",
    Cause.CANCELLED: "The run was cancelled after it had started. Reconcile the Action before any new one.",
    Cause.WORKER_LOST: "The run's process ended without a result. Reconcile the Action before any new one.",
    Cause.SHUTDOWN: "The sidecar shut down and stopped the run. Reconcile the Action before any new one.",
    Cause.RESTART: "The sidecar restarted while the run was active; its outcome is not known. Reconcile the Action.",
}

_NOT_STARTED = {
    Cause.EXCEPTION: "The crew could not be built or refused its input; no provider work started.",
    Cause.TIMEOUT: "The operation timeout passed before any provider work started.",
    Cause.CANCELLED: "The run was cancelled before any provider work started.",
    Cause.WORKER_LOST: "The run's process ended before any provider work started.",
    Cause.SHUTDOWN: "The sidecar shut down before any provider work started.",
    Cause.RESTART: "The sidecar restarted before any provider work of this Action started.",
}


def closes(record: Record, ending: Ending, *, ended_at: str, effect_free: bool) -> Record:
    """Return the record with its ending."""
    return msgspec.structs.replace(
        record,
        status=ending.status,
        cause=ending.cause,
        error_type=ending.error_type,
        ended_at=ended_at,
        provider_started=ending.provider_started,
        worker_stopped=ending.worker_stopped,
        uncertain_outcome=ending.uncertain_outcome,
        finished_late=ending.finished_late,
        to_be_reconciled=ending.to_be_reconciled(effect_free=effect_free),
        cancel_reason=ending.cancel_reason,
        cancelled_by=ending.cancelled_by,
        output=ending.output,
        output_truncated=ending.output_truncated,
        output_bytes=ending.output_bytes,
    )
