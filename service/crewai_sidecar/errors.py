"""Every error of the service, as one tree.

    SidecarError
    ├── StartRefused                  the process ends with one line: what, the fact, the remedy
    │   ├── SettingRefused            an AIP_CREWAI_* variable
    │   ├── RegistryRefused           AIP_CREWAI_REGISTRY does not load
    │   ├── VolumeRefused             owner, mode, kind or file system of a path
    │   └── JournalRefused            the journal cannot be read, is foreign, or is lost
    │       ├── JournalLocked         another process owns it
    │       └── JournalOverBound      it is larger than the bound it is opened with
    ├── NotStored                     the disk did not take a change; nothing of it is visible
    │   ├── JournalFull               no space, or the byte bound
    │   ├── JournalBroken             the disk fails, or the file is no longer ours
    │   └── RetainedBound             as many records as may be retained
    ├── WorkerLost                    a run's child, or the fork server, has gone
    └── RequestRefused                an answer to a caller; which number it has is written in api/problems.py
        └── one class for each code

A `code` is stable: clients, dashboards and the guide (deploy/guide/errors.md) name it.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ActionArchived",
    "ActionIdMismatch",
    "ActionUnknown",
    "AliasMisuse",
    "ArchiveUnconfirmed",
    "BodyTooLarge",
    "CrewMismatch",
    "CrewUnknown",
    "CursorOutside",
    "Draining",
    "InputInvalid",
    "InputTooLarge",
    "InvalidActionId",
    "InvalidBody",
    "InvalidFields",
    "JournalBroken",
    "JournalFull",
    "JournalLocked",
    "JournalOverBound",
    "JournalRefused",
    "KeyInvalid",
    "KeyMissing",
    "NotStored",
    "OperationNotAllowed",
    "QueueFull",
    "ReconciliationOpen",
    "RegistryRefused",
    "RequestConflict",
    "RequestRefused",
    "RetainedBound",
    "RunCancelled",
    "RunFailed",
    "SettingRefused",
    "SidecarError",
    "StartRefused",
    "StillRunning",
    "StopUnconfirmed",
    "Unauthorized",
    "VolumeRefused",
    "WaitTimeout",
    "WorkerLost",
]


class SidecarError(Exception):
    """Root of the tree. The text is one sentence or more, fit to be shown to the person it concerns."""

    code: ClassVar[str] = "internal"


class StartRefused(SidecarError):
    """Raised when the service must not start. The text is one line that ends with what to do."""

    code = "start_refused"


class SettingRefused(StartRefused):
    """Raised for an environment variable with a value that cannot be used; `variable` names it."""

    code = "setting_refused"

    def __init__(self, variable: str, fact: str) -> None:
        super().__init__(f"{variable}: {fact}")
        self.variable = variable


class RegistryRefused(SettingRefused):
    """Raised when the registry module does not load, or is not a mapping of crew ids."""

    code = "registry_refused"

    def __init__(self, fact: str) -> None:
        super().__init__("AIP_CREWAI_REGISTRY", fact)


class VolumeRefused(StartRefused):
    """Raised for a directory or file whose owner, mode or kind would not protect the journal; nothing is changed."""

    code = "volume_refused"

    def __init__(self, path: object, fact: str, remedy: str) -> None:
        super().__init__(f"{path}: {fact}. {remedy}")
        self.path, self.fact, self.remedy = path, fact, remedy


class JournalRefused(VolumeRefused):
    """Raised for a journal that cannot be read as one; the file is left as it was found."""

    code = "journal_refused"


class JournalLocked(JournalRefused):
    """Raised when another process holds the journal's lock."""

    code = "journal_locked"


class JournalOverBound(JournalRefused):
    """Raised when the journal on disk is larger than its bound; `least` is the smallest bound that opens it."""

    code = "journal_over_bound"

    def __init__(self, path: object, size: int, least: int) -> None:
        super().__init__(
            path, f"the journal has {size:,} bytes, which is over its bound", f"The bound must be {least:,}"
        )
        self.least = least


class NotStored(SidecarError):
    """Raised when a change did not become durable; memory and readers are as they were before it."""

    code = "not_stored"


class JournalFull(NotStored):
    """Raised for ENOSPC, EDQUOT and the journal's own byte bound. The next attempt may succeed without a restart."""

    code = "journal_full"


class JournalBroken(NotStored):
    """Raised for any other failure of the disk, and when the file on disk is not the one that was written last."""

    code = "journal_broken"


class RetainedBound(NotStored):
    """Raised when AIP_CREWAI_MAX_RETAINED_RUNS records are retained already."""

    code = "retained_bound"


class WorkerLost(SidecarError):
    """Raised when a run's child ended without a result."""

    code = "worker_lost"


class RequestRefused(SidecarError):
    """Root of the answers that are not a success. Nothing was changed by the request unless the class says so."""

    code = "request_refused"


class Unauthorized(RequestRefused):
    """The bearer token is missing or wrong."""

    code = "unauthorized"


class BodyTooLarge(RequestRefused):
    """The body is larger than any request may be; it was not parsed."""

    code = "body_too_large"


class InvalidBody(RequestRefused):
    """The body is not strict JSON."""

    code = "invalid_json"


class InvalidFields(RequestRefused):
    """A field, header or query parameter is missing, unknown, or not of its type or bounds."""

    code = "invalid_fields"


class AliasMisuse(RequestRefused):
    """A /runs alias was asked for another operation than run."""

    code = "alias_operation"


class ActionIdMismatch(RequestRefused):
    """Path and body name different Actions."""

    code = "action_id_mismatch"


class InputTooLarge(RequestRefused):
    """The input is larger than 1,048,576 bytes as compact UTF-8 JSON."""

    code = "input_too_large"


class KeyMissing(RequestRefused):
    """The Idempotency-Key is missing or blank."""

    code = "idempotency_key_missing"


class KeyInvalid(RequestRefused):
    """The Idempotency-Key is too long, not UTF-8, has control characters, or was sent twice."""

    code = "idempotency_key_invalid"


class RequestConflict(RequestRefused):
    """The Action ID is known with another request hash; no work was scheduled."""

    code = "request_conflict"


class ActionArchived(RequestRefused):
    """The Action was archived: its ID is spent and its record is gone."""

    code = "action_archived"


class ActionUnknown(RequestRefused):
    """No record has this Action ID."""

    code = "action_unknown"


class CrewMismatch(RequestRefused):
    """The Action belongs to another crew than the caller named."""

    code = "crew_mismatch"


class CrewUnknown(RequestRefused):
    """The registry has no crew of this id."""

    code = "crew_unknown"


class Draining(RequestRefused):
    """The service takes no new Action until it is restarted."""

    code = "draining"


class OperationNotAllowed(RequestRefused):
    """The operation is not in AIP_CREWAI_ALLOWED_OPERATIONS, or is not one that starts work."""

    code = "operation_not_allowed"


class InputInvalid(RequestRefused):
    """The input breaks the operation's rules."""

    code = "invalid_input"


class InvalidActionId(RequestRefused):
    """The Action ID could not be addressed in a path."""

    code = "invalid_action_id"


class QueueFull(RequestRefused):
    """As many Actions wait for a slot as may wait; nothing was admitted."""

    code = "queue_full"


class CursorOutside(RequestRefused):
    """The cursor is negative or beyond the last event."""

    code = "cursor_outside"


class ArchiveUnconfirmed(RequestRefused):
    """The archive confirmation header is missing or names another Action."""

    code = "archive_unconfirmed"


class StillRunning(RequestRefused):
    """A running Action cannot be archived."""

    code = "still_running"


class ReconciliationOpen(RequestRefused):
    """The Action's effect has not been reconciled yet, so its record must stay."""

    code = "reconciliation_open"


class StopUnconfirmed(RequestRefused):
    """The cancel is ordered, but no ending was on disk in time; the record says later how it ended."""

    code = "stop_unconfirmed"


class RunCancelled(RequestRefused):
    """The Action's record ended cancelled."""

    code = "run_cancelled"


class RunFailed(RequestRefused):
    """The Action's record ended failed."""

    code = "run_failed"


class WaitTimeout(RequestRefused):
    """The caller's wait ended before the Action did; the Action is not stopped by that."""

    code = "wait_timeout"
