"""What several routes do with an Action: admit it, find it, wait for it."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
from litestar.response.base import ASGIResponse

from crewai_sidecar.admission import Admitted
from crewai_sidecar.api.parts import AnyRequest, parts
from crewai_sidecar.api.wire import ClientGone, query, start_request
from crewai_sidecar.errors import ActionArchived, ActionUnknown, CrewMismatch, SidecarError
from crewai_sidecar.ledger import Entry

__all__ = ["action_id", "admit", "answer", "disconnected", "find", "location", "wait_for_ending"]


async def admit(request: AnyRequest, *, alias: bool = False) -> Admitted:
    """Read a start and admit it: the durable record that answers it.

    Raises what `wire.start_request` and `Admission.admit` raise.
    """
    service = parts(request)
    start = await start_request(request, alias=alias)
    request.state.action_id = start.action_id
    try:
        admitted = await service.admission.admit(start)
    except SidecarError as error:
        service.metrics.admitted(start.operation, error.code)
        raise
    service.metrics.admitted(start.operation, "new" if admitted.new else "repeat")
    return admitted


def action_id(request: AnyRequest) -> str:
    """The Action that a path names; from here on a refusal names it too.

    The one id that is also a route's name is an id like any other: see `routes.py`.
    """
    found: str = request.path_params.get("action_id", "stream")
    request.state.action_id = found
    return found


def find(request: AnyRequest, wanted: str, crew_id: str | None = None) -> Entry:
    """The published entry of an Action.

    `crew_id`, or the query parameter of this name, must be the record's.

    Raises ActionUnknown, ActionArchived, CrewMismatch.
    """
    entry = parts(request).store.find(wanted)
    if entry is None:
        raise ActionUnknown("No record has this Action ID.")
    if not isinstance(entry, Entry):
        raise ActionArchived(f"This Action was archived at {entry.archived_at}; it ended {entry.status}.")
    crew_id = query(request, "crew_id") if crew_id is None else crew_id
    if crew_id is not None and crew_id != entry.record.crew_id:
        raise CrewMismatch("This Action belongs to another crew.")
    return entry


def answer(value: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None) -> ASGIResponse:
    """Write a JSON answer."""
    return ASGIResponse(body=msgspec.json.encode(value), status_code=status, headers=headers)


def location(wanted: str) -> str:
    """The path of an Action's record."""
    return f"/jobs/{quote(wanted, safe='')}"


async def disconnected(receive: Any) -> None:
    """Wait until the client has closed the connection. Only after the whole body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def wait_for_ending(request: AnyRequest, wanted: str, seconds: float) -> None:
    """Wait for an Action's ending on behalf of a client: until it is there, the time is over, or the service closes.

    Raises ClientGone when the client has closed the connection before that.
    """
    service = parts(request)
    ending = asyncio.create_task(service.store.ending(wanted, seconds))
    gone = asyncio.create_task(disconnected(request.receive))
    closing = asyncio.create_task(service.closing.wait())
    try:
        await asyncio.wait({ending, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
        if not (ending.done() or closing.done()):
            raise ClientGone
    finally:
        for task in (ending, gone, closing):
            task.cancel()
        await asyncio.wait({ending, gone, closing})
