"""Start and wait, show, list, cancel, archive: the routes of the contract that answer with one JSON object."""

from __future__ import annotations

import asyncio

import msgspec
from litestar.response.base import ASGIResponse

from crewai_sidecar import transitions
from crewai_sidecar.api.actions import action_id, admit, answer, find, location, wait_for_ending
from crewai_sidecar.api.parts import AnyRequest, Parts, parts
from crewai_sidecar.api.problems import problem
from crewai_sidecar.api.wire import CANCEL_FIELDS, header, headers, query, query_integer, read_fields
from crewai_sidecar.clock import timestamp
from crewai_sidecar.errors import (
    ActionIdMismatch,
    AliasMisuse,
    ArchiveUnconfirmed,
    InvalidFields,
    ReconciliationOpen,
    RunCancelled,
    RunFailed,
    StillRunning,
    StopUnconfirmed,
    WaitTimeout,
)
from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Cause, Operation, Record, Status
from crewai_sidecar.views import JobsPage, record_summary, record_view

__all__ = [
    "CANCEL_SECONDS",
    "WAIT_MS",
    "Archived",
    "archive",
    "cancel",
    "cancel_alias",
    "list_jobs",
    "show",
    "show_alias",
    "start",
    "start_alias",
]

WAIT_MS = 600_000
"""A blocking caller's wait where the Action names no timeout."""

CANCEL_SECONDS = 10.0
"""Time in which a cancel must have its ending on disk."""


# -- start ----------------------------------------------------------------------------------------------------------


async def start(request: AnyRequest) -> ASGIResponse:
    """Admit an Action and wait for its output, or with `Prefer: respond-async` only for its admission.

    The same request again is answered from the record and runs nothing.
    """
    return await _start(request, alias=False)


async def start_alias(request: AnyRequest) -> ASGIResponse:
    """As `POST /jobs`, for the operation run only."""
    return await _start(request, alias=True)


async def _start(request: AnyRequest, *, alias: bool) -> ASGIResponse:
    admitted = await admit(request, alias=alias)
    entry = admitted.entry
    if entry.record.ended:
        return _outcome(entry.record)
    if _prefers_async(request):
        headers = {"Location": location(entry.record.action_id), "Preference-Applied": "respond-async"}
        return answer(record_view(entry), 202, headers)
    seconds = (entry.record.timeout_ms or WAIT_MS) / 1000
    await wait_for_ending(request, entry.record.action_id, seconds)
    return _outcome(entry.record, waited=True)


def _prefers_async(request: AnyRequest) -> bool:
    preferences = b",".join(headers(request, b"prefer")).split(b",")
    return any(one.partition(b";")[0].strip().lower() == b"respond-async" for one in preferences)


def _outcome(record: Record, *, waited: bool = False) -> ASGIResponse:
    """Answer with what a record is. 504 is for those whose wait ended in a timeout, 502 for who asks later."""
    if record.status is Status.COMPLETED:
        return ASGIResponse(body=record.output or b"{}")
    if record.status is Status.CANCELLED:
        refusal: RunCancelled | RunFailed | WaitTimeout = RunCancelled(_advice("The Action was cancelled.", record))
    elif not record.ended:
        refusal = WaitTimeout("The Action goes on; read its record, or send the same request again.")
    elif waited and record.cause is Cause.TIMEOUT:
        refusal = WaitTimeout(_advice("The operation timeout passed and the run was stopped.", record))
    else:
        refusal = RunFailed(_advice("The Action failed.", record))
    return problem(refusal, action_id=record.action_id, record=record if record.ended else None)


def _advice(fact: str, record: Record) -> str:
    if record.to_be_reconciled:
        return f"{fact} Reconcile it before any new Action."
    return fact if record.provider_started else f"{fact} No provider work had started."


# -- read -----------------------------------------------------------------------------------------------------------


async def show(request: AnyRequest) -> ASGIResponse:
    """Read a record."""
    return answer(record_view(find(request, action_id(request))))


async def show_alias(request: AnyRequest) -> ASGIResponse:
    """As `GET /jobs/{action_id}`, for the operation run only."""
    entry = find(request, action_id(request))
    _check_alias(entry)
    return answer(record_view(entry))


def _check_alias(entry: Entry) -> None:
    if entry.record.operation is not Operation.RUN:
        raise AliasMisuse(f"The /runs routes are for the operation run; this Action is a {entry.record.operation}.")


async def list_jobs(request: AnyRequest) -> ASGIResponse:
    """Read records in the order of their admission, without their outputs."""
    status = query(request, "status")
    if status is not None and status not in set(Status):
        raise InvalidFields(f"The query parameter status must be one of {', '.join(Status)}.")
    open_only = _query_flag(request, "to_be_reconciled")
    crew_id = query(request, "crew_id")
    limit = query_integer(request, "limit")
    if limit is None:
        limit = 100
    if not 1 <= limit <= 1000:
        raise InvalidFields("The query parameter limit must be an integer from 1 to 1,000.")
    after = query(request, "after")
    entries = iter(parts(request).store)
    if after is not None:
        last = find(request, after)
        for entry in entries:
            if entry is last:
                break
    page: list[Entry] = []
    for entry in entries:
        record = entry.record
        if (
            (status is None or record.status == status)
            and (crew_id is None or record.crew_id == crew_id)
            and (open_only is None or record.to_be_reconciled is open_only)
        ):
            if len(page) == limit:
                following = page[-1].record.action_id
                break
            page.append(entry)
    else:
        following = None
    return answer(JobsPage(jobs=[record_summary(entry) for entry in page], next=following))


def _query_flag(request: AnyRequest, name: str) -> bool | None:
    text = query(request, name)
    known = {None: None, "true": True, "1": True, "false": False, "0": False}
    lowered = None if text is None else text.lower()
    if lowered not in known:
        raise InvalidFields(f"The query parameter {name} must be true or false.")
    return known[lowered]


# -- cancel ---------------------------------------------------------------------------------------------------------


async def cancel(request: AnyRequest) -> ASGIResponse:
    """Order an Action to stop and answer with its record once an ending is on disk, whichever it is."""
    return await _cancel(request)


async def cancel_alias(request: AnyRequest) -> ASGIResponse:
    """As `POST /jobs/{action_id}/cancel`, for the operation run only."""
    return await _cancel(request, alias=True)


async def _cancel(request: AnyRequest, *, alias: bool = False) -> ASGIResponse:
    service = parts(request)
    wanted = action_id(request)
    body = (await read_fields(request, CANCEL_FIELDS)).fields
    if body["action_id"] != wanted:
        raise ActionIdMismatch("The path and the body name different Actions.")
    await service.admission.settled(wanted)
    entry = find(request, wanted, body["crew_id"])
    if alias:
        _check_alias(entry)
    if not entry.record.ended:
        service.scheduler.cancel(wanted, reason=body.get("reason"), cancelled_by=_cancelled_by(request))
        await wait_for_ending(request, wanted, CANCEL_SECONDS)
        if not entry.record.ended:
            raise StopUnconfirmed(
                f"The stop is ordered, and no ending was on disk within {CANCEL_SECONDS:.0f} s; read the record."
            )
    return answer(record_view(entry))


def _cancelled_by(request: AnyRequest) -> str | None:
    """The cancelling Action's id, where a text came that could be one."""
    try:
        text = (header(request, b"x-aip-action-id") or b"").decode("utf-8").strip()
    except UnicodeDecodeError:
        return None
    return text if 1 <= len(text) <= 256 and text.isprintable() else None


# -- archive --------------------------------------------------------------------------------------------------------


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """An Action that has left the journal; its id stays spent."""

    action_id: str
    archived: bool = True


async def archive(request: AnyRequest) -> ASGIResponse:
    """Replace an ended record by a tombstone. Its Action ID stays spent: every route answers 410."""
    service = parts(request)
    wanted = action_id(request)
    confirmed = header(request, b"x-aip-archive-confirmation")
    asked = wanted.strip(" \t").encode("utf-8")  # a header cannot carry an id's outer blanks
    if confirmed is None or confirmed.strip(b" \t") != asked:
        raise ArchiveUnconfirmed("X-AIP-Archive-Confirmation must be the Action ID of the path.")
    while wanted in service.archiving:  # one at a time: what is archived once has no record to archive again
        await asyncio.wait([service.archiving[wanted]])
    entry = find(request, wanted)
    if not entry.record.ended:
        raise StillRunning("A running Action cannot be archived; wait for its ending or cancel it.")
    if entry.record.to_be_reconciled:
        raise ReconciliationOpen("Nobody has found out yet whether the effect happened, so the record must stay.")
    task = asyncio.get_running_loop().create_task(_commit_archive(service, entry.record), name=f"archive {wanted}")
    service.archiving[wanted] = task
    await asyncio.shield(task)
    return answer(Archived(action_id=wanted))


async def _commit_archive(service: Parts, record: Record) -> None:
    try:
        await service.store.commit(transitions.archived(record, at=timestamp(service.clock.utc())))
    finally:
        del service.archiving[record.action_id]
