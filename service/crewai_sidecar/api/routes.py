"""The routes of the contract port: path, method, handler, and what each may answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import OpenAPIType, Parameter, Schema
from litestar.response.base import ASGIResponse

from crewai_sidecar import errors
from crewai_sidecar.api import jobs, management, streams
from crewai_sidecar.api.openapi import INTEGER, TEXT, Described, description
from crewai_sidecar.api.parts import AnyRequest
from crewai_sidecar.api.wire import CANCEL_FIELDS, START_FIELDS
from crewai_sidecar.model import Status
from crewai_sidecar.views import EventsPage, JobsPage, RecordView

__all__ = ["contract_routes"]


def _in_query(name: str, text: str, schema: Schema = TEXT) -> Parameter:
    return Parameter(name=name, param_in="query", schema=schema, description=text)


def _in_header(name: str, text: str, *, required: bool = False) -> Parameter:
    return Parameter(name=name, param_in="header", schema=TEXT, description=text, required=required)


_KEY = _in_header("Idempotency-Key", "1 to 512 bytes of UTF-8, no code point below U+0020.", required=True)
_TRACE = _in_header("traceparent", "W3C trace context; its ids become part of the record.")
_PREFER = _in_header("Prefer", "`respond-async`: answer 202 as soon as the Action is on disk.")
_CREW = _in_query("crew_id", "404 where it is not the record's.")

_READ_BODY = (errors.BodyTooLarge, errors.InvalidBody, errors.InvalidFields)
_ADMIT = (
    *_READ_BODY,
    errors.InputTooLarge,
    errors.KeyMissing,
    errors.KeyInvalid,
    errors.RequestConflict,
    errors.ActionArchived,
    errors.Draining,
    errors.OperationNotAllowed,
    errors.InputInvalid,
    errors.InvalidActionId,
    errors.CrewUnknown,
    errors.QueueFull,
    errors.RetainedBound,
    errors.JournalFull,
    errors.JournalBroken,
)
_WAIT = (*_ADMIT, errors.RunCancelled, errors.RunFailed, errors.WaitTimeout)
_FIND = (errors.ActionUnknown, errors.CrewMismatch, errors.ActionArchived, errors.InvalidFields)
_STORE = (errors.JournalFull, errors.JournalBroken)


def _start(operation_id: str, *more: type[errors.SidecarError]) -> dict[str, Any]:
    return Described(
        operation_id=operation_id,
        output=True,
        success={202: (RecordView, "The Action is on disk; with `Prefer: respond-async`.")},
        refusals=(*_WAIT, *more),
        body=START_FIELDS,
        parameters=(_KEY, _PREFER, _TRACE),
    ).options()


def _stream(operation_id: str, *more: type[errors.SidecarError]) -> dict[str, Any]:
    return Described(
        operation_id=operation_id,
        stream=True,
        refusals=(*_ADMIT, *more),
        body=START_FIELDS,
        parameters=(_KEY, _TRACE),
    ).options()


def _show(operation_id: str, *more: type[errors.SidecarError]) -> dict[str, Any]:
    return Described(
        operation_id=operation_id,
        success={200: (RecordView, "The record.")},
        refusals=(*_FIND, *more),
        parameters=(_CREW,),
    ).options()


def _cancel(operation_id: str, *more: type[errors.SidecarError]) -> dict[str, Any]:
    return Described(
        operation_id=operation_id,
        success={200: (RecordView, "The record with its ending, whichever it is.")},
        refusals=(
            *_READ_BODY,
            errors.ActionIdMismatch,
            *_FIND[:-1],
            errors.StopUnconfirmed,
            *_STORE,
            *more,
        ),
        body=CANCEL_FIELDS,
        parameters=(_in_header("X-AIP-Action-ID", "The cancelling Action's id; kept in the record."),),
    ).options()


_LIST = Described(
    operation_id="listJobs",
    success={200: (JobsPage, "Records in the order of their admission.")},
    refusals=(errors.InvalidFields, errors.ActionUnknown, errors.CrewMismatch, errors.ActionArchived),
    parameters=(
        _in_query("status", "Only records of this status.", Schema(type=OpenAPIType.STRING, enum=list(Status))),
        _in_query("crew_id", "Only records of this crew."),
        _in_query(
            "to_be_reconciled", "Only records that are, or are not, to be reconciled.", Schema(type=OpenAPIType.BOOLEAN)
        ),
        _in_query(
            "limit", "Records of a page.", Schema(type=OpenAPIType.INTEGER, minimum=1, maximum=1000, default=100)
        ),
        _in_query("after", "The Action ID of the last record seen; `next` of the page before."),
    ),
).options()

_EVENTS = Described(
    operation_id="readEvents",
    success={200: (EventsPage, "The events from the cursor on.")},
    stream=True,
    refusals=(*_FIND, errors.CursorOutside),
    parameters=(
        _in_query("cursor", "Events from this sequence on; 0 if absent.", INTEGER),
        _CREW,
        _in_header("Last-Event-ID", "For a stream without a cursor: the sequence of the last event seen."),
    ),
).options()

_ARCHIVE = Described(
    operation_id="archiveJob",
    success={200: (jobs.Archived, "The record is a tombstone now.")},
    refusals=(errors.ArchiveUnconfirmed, *_FIND, errors.StillRunning, errors.ReconciliationOpen, *_STORE),
    parameters=(_in_header("X-AIP-Archive-Confirmation", "The Action ID again.", required=True), _CREW),
).options()

_HEALTH = Described(
    operation_id="health",
    success={200: (management.Health, "How the service is."), 503: (management.Health, "The service is going down.")},
).options()

_DRAIN = Described(operation_id="drain", success={200: (management.Drained, "No new Action is admitted.")}).options()


def _described() -> Iterable[HTTPRouteHandler]:
    yield get("/health", **_HEALTH)(management.health)
    yield post("/drain", **_DRAIN)(management.drain)
    yield post("/jobs", **_start("startJob"))(jobs.start)
    yield post("/runs", **_start("startRun", errors.AliasMisuse))(jobs.start_alias)
    yield post("/jobs/stream", **_stream("streamJob"))(streams.start_stream)
    yield post("/runs/stream", **_stream("streamRun", errors.AliasMisuse))(streams.start_stream_alias)
    yield get("/jobs", **_LIST)(jobs.list_jobs)
    yield get("/jobs/{action_id:str}", **_show("showJob"))(jobs.show)
    yield get("/runs/{action_id:str}", **_show("showRun", errors.AliasMisuse))(jobs.show_alias)
    yield get("/jobs/{action_id:str}/events", **_EVENTS)(streams.events)
    yield post("/jobs/{action_id:str}/cancel", **_cancel("cancelJob"))(jobs.cancel)
    yield post("/runs/{action_id:str}/cancel", **_cancel("cancelRun", errors.AliasMisuse))(jobs.cancel_alias)
    yield delete("/jobs/{action_id:str}", **_ARCHIVE)(jobs.archive)


def _an_id_like_any_other() -> Iterable[HTTPRouteHandler]:
    """Let the Action ID `stream` be read too, whose path is also that of a start."""
    yield get("/jobs/stream", include_in_schema=False)(jobs.show)
    yield get("/runs/stream", include_in_schema=False)(jobs.show_alias)
    yield get("/jobs/stream/events", include_in_schema=False)(streams.events)
    yield post("/jobs/stream/cancel", include_in_schema=False, status_code=200)(jobs.cancel)
    yield post("/runs/stream/cancel", include_in_schema=False, status_code=200)(jobs.cancel_alias)
    yield delete("/jobs/stream", include_in_schema=False, status_code=200)(jobs.archive)


def contract_routes() -> list[HTTPRouteHandler]:
    """Make the routes of the contract port, the description of the others among them."""
    described = tuple(_described())

    @get("/openapi.json", include_in_schema=False)
    async def openapi(request: AnyRequest) -> ASGIResponse:
        return ASGIResponse(body=description(described), media_type="application/vnd.oai.openapi+json")

    return [*described, *_an_id_like_any_other(), openapi]
