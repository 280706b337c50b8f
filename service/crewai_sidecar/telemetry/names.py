"""Every metric, declared once: name, unit, help, labels, and the values that a label may have.

Label values are bounded by these lists or by the code (route templates, HTTP codes); anything else is counted under
OTHER. No Action ID, key, crew or text of a caller is ever a label.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from crewai_sidecar.model import CONTROL_OPERATIONS, Cause, Operation, Status

__all__ = ["METRICS", "OTHER", "PREFIX", "UNMATCHED", "Declared"]

PREFIX = "crewai_sidecar_"

OTHER = "other"
"""Label value for whatever is not on the list of its label."""

UNMATCHED = "unmatched"
"""Label value of `route` for a path that is no route."""

_OPERATIONS = frozenset({*Operation, *CONTROL_OPERATIONS})
_CAUSES = frozenset({*Cause, ""})
_OUTCOMES = frozenset(
    {
        "new",
        "repeat",
        "request_conflict",
        "action_archived",
        "draining",
        "operation_not_allowed",
        "invalid_input",
        "invalid_action_id",
        "crew_unknown",
        "queue_full",
        "journal_full",
        "journal_broken",
        "retained_bound",
    }
)

_RUN_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)
_DISK_SECONDS = tuple(0.001 * 2**step for step in range(14))


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric. `labels` maps a label to its values, or to None where the code bounds them."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    unit: str = ""
    labels: dict[str, frozenset[str] | None] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()


METRICS: tuple[Declared, ...] = (
    Declared(
        "admissions_total",
        "counter",
        "Start requests that reached the look-up: new, repeat, or the code of the refusal.",
        labels={"operation": _OPERATIONS, "outcome": _OUTCOMES},
    ),
    Declared(
        "http_answers_total",
        "counter",
        "Answers of the contract port. A client that went away before its answer counts as 499.",
        labels={
            "route": None,
            "method": frozenset({"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"}),
            "code": None,
        },
    ),
    Declared(
        "connections_refused_total",
        "counter",
        "Connections that were closed at once, because their listener had as many as it may have.",
        labels={"listener": frozenset({"contract", "management"})},
    ),
    Declared(
        "runs_ended_total",
        "counter",
        "Actions that ended, by operation, status and cause (empty for completed).",
        labels={"operation": _OPERATIONS, "status": frozenset(Status), "cause": _CAUSES},
    ),
    Declared(
        "run_seconds",
        "histogram",
        "Time that an Action held a slot.",
        unit="seconds",
        labels={"operation": _OPERATIONS},
        buckets=_RUN_SECONDS,
    ),
    Declared(
        "reconciliations_opened_total",
        "counter",
        "Actions that ended in a way that somebody has to reconcile, by cause.",
        labels={"cause": _CAUSES},
    ),
    Declared("records_fenced_total", "counter", "Records that a restart found running and ended as failed."),
    Declared("events_dropped_total", "counter", "Events of runs that were counted and not stored."),
    Declared(
        "children_total",
        "counter",
        "What happened to the processes of runs.",
        labels={"kind": frozenset({"forked", "exited", "killed"})},
    ),
    Declared("journal_commits_total", "counter", "Commits that became durable."),
    Declared("journal_changes_total", "counter", "Changes in these commits."),
    Declared("journal_written_bytes_total", "counter", "Bytes written by these commits.", unit="bytes"),
    Declared("journal_commit_seconds", "histogram", "Time of one commit.", unit="seconds", buckets=_DISK_SECONDS),
    Declared(
        "journal_failures_total",
        "counter",
        "Commits that the disk did not take, by code.",
        labels={"kind": frozenset({"journal_full", "journal_broken"})},
    ),
    Declared("active_runs", "gauge", "Actions that have a slot."),
    Declared("queued_actions", "gauge", "Admitted Actions that wait for a slot."),
    Declared("running_records", "gauge", "Records without an ending."),
    Declared("retained_records", "gauge", "Records in the journal, tombstones not among them."),
    Declared("tombstones", "gauge", "Archived Actions that are remembered."),
    Declared("open_reconciliations", "gauge", "Records that somebody has to reconcile."),
    Declared("journal_bytes", "gauge", "Size of the journal.", unit="bytes"),
    Declared("admission_open", "gauge", "1 while new Actions are admitted, else 0."),
    Declared("event_readers", "gauge", "Streams of events that are open."),
)
