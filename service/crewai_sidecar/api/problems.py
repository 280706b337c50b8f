"""Answers that are not a success: one table from error class to status and title, and the RFC 9457 body.

The numbers of HTTP stand here and nowhere else. A `code` is the class's own and stable; `detail` is the error's
sentence, which its raiser wrote to be shown.
"""

from __future__ import annotations

import msgspec
from litestar.response.base import ASGIResponse

from crewai_sidecar import errors
from crewai_sidecar.errors import RequestRefused, SidecarError
from crewai_sidecar.model import Cause, Record

__all__ = [
    "MEDIA_TYPE",
    "PROBLEMS",
    "ROUTING",
    "HeadersTooLarge",
    "Internal",
    "MalformedRequest",
    "MethodNotAllowed",
    "NotFound",
    "Problem",
    "problem",
]

MEDIA_TYPE = "application/problem+json"


class MalformedRequest(RequestRefused):
    """What came is no HTTP."""

    code = "malformed_request"


class HeadersTooLarge(RequestRefused):
    """The head of a request has no end within its bound."""

    code = "headers_too_large"


class NotFound(RequestRefused):
    """No route has this path."""

    code = "not_found"


class MethodNotAllowed(RequestRefused):
    """The route of this path does not have this method."""

    code = "method_not_allowed"


class Internal(SidecarError):
    """A fault of the service. What it was is in the log only."""

    code = "internal"


PROBLEMS: dict[type[SidecarError], tuple[int, str]] = {
    errors.Unauthorized: (401, "The bearer token is missing or wrong"),
    errors.BodyTooLarge: (413, "The body is too large"),
    errors.InvalidBody: (400, "The body is not strict JSON"),
    errors.InvalidFields: (422, "A field is missing, unknown or out of bounds"),
    errors.AliasMisuse: (400, "The alias is for the operation run only"),
    errors.ActionIdMismatch: (400, "Path and body name different Actions"),
    errors.InputTooLarge: (413, "The input is too large"),
    errors.KeyMissing: (428, "The Idempotency-Key is missing"),
    errors.KeyInvalid: (400, "The Idempotency-Key is not valid"),
    errors.RequestConflict: (409, "The Action ID is known with another request"),
    errors.ActionArchived: (410, "The Action is archived"),
    errors.ActionUnknown: (404, "The Action is not known"),
    errors.CrewMismatch: (404, "The Action belongs to another crew"),
    errors.CrewUnknown: (404, "The crew is not known"),
    errors.Draining: (503, "The sidecar takes no new Action"),
    errors.OperationNotAllowed: (403, "The operation is not allowed"),
    errors.InputInvalid: (422, "The input breaks the operation's rules"),
    errors.InvalidActionId: (422, "The Action ID is not valid"),
    errors.QueueFull: (503, "The queue is full"),
    errors.CursorOutside: (416, "The cursor is outside of the events"),
    errors.ArchiveUnconfirmed: (428, "The archive is not confirmed"),
    errors.StillRunning: (409, "The Action is still running"),
    errors.ReconciliationOpen: (409, "The Action is to be reconciled first"),
    errors.StopUnconfirmed: (503, "The stop is not confirmed yet"),
    errors.RunCancelled: (409, "The Action ended cancelled"),
    errors.RunFailed: (502, "The Action ended failed"),
    errors.WaitTimeout: (504, "The wait ended before the Action"),
    errors.JournalFull: (507, "The journal has no room"),
    errors.JournalBroken: (507, "The journal cannot be written"),
    errors.RetainedBound: (507, "As many records are retained as may be"),
    MalformedRequest: (400, "The request is not valid HTTP"),
    HeadersTooLarge: (431, "The headers are too large"),
    NotFound: (404, "There is nothing at this path"),
    MethodNotAllowed: (405, "The path does not have this method"),
    Internal: (500, "The sidecar failed"),
}

ROUTING: tuple[type[SidecarError], ...] = (MalformedRequest, HeadersTooLarge, NotFound, MethodNotAllowed)
"""Problems of no route."""

_RETRY_AFTER: dict[type[SidecarError], str] = {errors.QueueFull: "1", errors.Draining: "5"}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An RFC 9457 problem. The fields after `action_id` come with the ending of a record."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    action_id: str | msgspec.UnsetType = msgspec.UNSET
    cause: Cause | msgspec.UnsetType | None = msgspec.UNSET
    error_type: str | msgspec.UnsetType | None = msgspec.UNSET
    provider_started: bool | msgspec.UnsetType = msgspec.UNSET
    uncertain_outcome: bool | msgspec.UnsetType = msgspec.UNSET
    to_be_reconciled: bool | msgspec.UnsetType = msgspec.UNSET


def problem(
    error: SidecarError,
    *,
    action_id: str | None = None,
    record: Record | None = None,
    headers: dict[str, str] | None = None,
) -> ASGIResponse:
    """Write the answer that an error is. What has no row in the table is answered as a fault of the service."""
    row = PROBLEMS.get(type(error))
    if row is None:
        error = Internal("The sidecar failed to handle this request; its log says why.")
        row = PROBLEMS[Internal]
    status, title = row
    body = Problem(
        title=title,
        status=status,
        detail=str(error).encode("utf-8", "replace").decode() or title + ".",
        code=error.code,
        action_id=action_id if action_id is not None else msgspec.UNSET,
    )
    if record is not None:
        body = msgspec.structs.replace(
            body,
            cause=record.cause,
            error_type=record.error_type,
            provider_started=record.provider_started,
            uncertain_outcome=record.uncertain_outcome,
            to_be_reconciled=record.to_be_reconciled,
        )
    fields = dict(headers or {})
    if type(error) in _RETRY_AFTER:
        fields["Retry-After"] = _RETRY_AFTER[type(error)]
    if status == 401:
        fields["WWW-Authenticate"] = "Bearer"
    return ASGIResponse(body=msgspec.json.encode(body), status_code=status, media_type=MEDIA_TYPE, headers=fields)
