"""What goes to the sidecar and what comes back, as frozen values.

Views have the fields that a caller decides by; `answer` has the whole object as it came, so that a newer sidecar's
fields are not lost to an older client.
"""

from __future__ import annotations

from typing import Any

import msgspec

from crewai_sidecar.model import TERMINAL_EVENTS, Status

__all__ = ["Accepted", "Action", "Event", "EventsPage", "Health", "JobsPage", "RecordView"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One Action: who it is and what it asks. Two equal Actions are one piece of work, however often they are sent."""

    crew_id: str
    action_id: str
    idempotency_key: str
    operation: str = "run"
    input: dict[str, Any] = {}
    timeout_ms: int | None = None

    def body(self) -> dict[str, Any]:
        """Write the JSON body of a start. An absent timeout stays absent: it is part of the request hash."""
        fields = {
            "crew_id": self.crew_id,
            "action_id": self.action_id,
            "operation": self.operation,
            "input": self.input,
        }
        return fields if self.timeout_ms is None else {**fields, "timeout_ms": self.timeout_ms}


class Event(msgspec.Struct, frozen=True):
    """One event of a record. `event` is its name; a client passes over names that it does not know."""

    event: str
    sequence: int
    data: dict[str, Any]

    @property
    def terminal(self) -> bool:
        """Whether it is the record's ending."""
        return self.event in TERMINAL_EVENTS


class RecordView(msgspec.Struct, frozen=True, kw_only=True):
    """A record as `GET /jobs/{id}` shows it."""

    action_id: str
    crew_id: str
    operation: str
    status: Status
    event_count: int
    output: dict[str, Any] | None = None
    cause: str | None = None
    error_type: str | None = None
    provider_started: bool | None = None
    worker_stopped: bool | None = None
    uncertain_outcome: bool = False
    to_be_reconciled: bool = False
    answer: dict[str, Any] = {}

    @property
    def ended(self) -> bool:
        """Whether the record has its ending."""
        return self.status is not Status.RUNNING


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `Prefer: respond-async`: the Action is on disk, and its record can be read at `location`."""

    location: str
    answer: dict[str, Any]


class EventsPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a record's events."""

    action_id: str
    cursor: int
    next_cursor: int
    status: Status
    events: list[Event]


class JobsPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list of records; `next` is the cursor of the next page, null on the last."""

    jobs: list[RecordView]
    next: str | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What the sidecar says of itself."""

    status: str
    durable_journal: bool
    crews: list[str]
    operations: list[str]
    answer: dict[str, Any] = {}

    @property
    def ready(self) -> bool:
        """Whether a connector may use it: ready, and with a journal on disk."""
        return self.status == "ready" and self.durable_journal
