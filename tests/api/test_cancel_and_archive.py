"""POST /jobs/{id}/cancel and DELETE /jobs/{id}."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from crewai_sidecar.api import jobs
from crewai_sidecar.errors import JournalBroken, JournalFull
from crewai_sidecar.model import Cause, Status
from tests.api.service import Service, in_a_service, until
from tests.doubles.manual_journal import ManualJournal


@in_a_service()
async def test_a_cancel_answers_with_the_record_once_the_ending_is_there(service: Service) -> None:
    """Reason and the cancelling Action are in the record."""
    await service.begin()
    response = await service.cancel(reason="é" * 2048, headers={"X-AIP-Action-ID": "act_c", "Idempotency-Key": "k"})
    assert response.status_code == 200
    record = response.json()
    assert (record["status"], record["cause"], record["provider_started"]) == ("cancelled", "cancelled", False)
    assert (record["cancel_reason"], record["cancelled_by"]) == ("é" * 2048, "act_c")


@pytest.mark.parametrize("header", [b"", b" ", b"\xff", b"x" * 257, b"a\x7fb", "a\u0085b".encode()])
@in_a_service()
async def test_a_header_that_is_no_action_id_is_ignored(service: Service, header: bytes) -> None:
    """The cancel itself must not fail for it."""
    await service.begin()
    assert (await service.cancel(headers={b"x-aip-action-id": header})).json()["cancelled_by"] is None


@in_a_service()
async def test_a_cancel_of_an_ended_action_changes_nothing(service: Service) -> None:
    """200 with the ending that is there."""
    await service.done()
    response = await service.cancel()
    assert (response.status_code, response.json()["status"]) == (200, "completed")
    assert service.scheduler.orders == {}


@in_a_service()
async def test_a_result_that_was_first_wins(service: Service) -> None:
    """The cancel says what the record says."""
    await service.begin()
    service.scheduler.holds_cancels = True
    cancel = asyncio.create_task(service.cancel())
    await until(lambda: service.scheduler.orders)
    await service.scheduler.complete("act_1", {"raw": "x"})
    assert ((await cancel).status_code, (await cancel).json()["status"]) == (200, "completed")


@in_a_service()
async def test_two_cancels_are_one_order(service: Service) -> None:
    """Both get the ending."""
    await service.begin()
    answers = await asyncio.gather(service.cancel(reason="first"), service.cancel(reason="second"))
    assert {(one.status_code, one.json()["cancel_reason"]) for one in answers} == {(200, "first")}


@in_a_service()
async def test_a_stop_that_is_not_confirmed_in_time_is_503(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order stands, and nobody is told that it is done."""
    monkeypatch.setattr(jobs, "CANCEL_SECONDS", 0.02)
    service.scheduler.holds_cancels = True
    await service.begin()
    response = await service.cancel()
    assert (response.status_code, response.json()["code"]) == (503, "stop_unconfirmed")
    assert "retry-after" not in response.headers
    assert list(service.scheduler.orders) == ["act_1"]


def test_a_cancel_waits_ten_seconds() -> None:
    """As the guide says."""
    assert jobs.CANCEL_SECONDS == 10.0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"action_id": "act_2"}, (400, "action_id_mismatch")),
        ({"crew_id": "other"}, (404, "crew_mismatch")),
        ({"crew_id": ""}, (422, "invalid_fields")),
        ({"reason": "x" * 2049}, (422, "invalid_fields")),
        ({"reason": 1}, (422, "invalid_fields")),
        ({"idempotency_key": "k"}, (422, "invalid_fields")),
        ({"reason": None}, (200, "")),
        ({"reason": ""}, (200, "")),
    ],
)
@in_a_service()
async def test_a_cancel_s_body_is_checked(service: Service, fields: dict[str, Any], expected: tuple[int, str]) -> None:
    """Nothing is ordered by one that is refused."""
    await service.begin()
    body = {"crew_id": "crew", "action_id": "act_1"} | fields
    response = await service.client.post("/jobs/act_1/cancel", json=body)
    assert (response.status_code, response.json().get("code", "")) == expected
    assert bool(service.scheduler.orders) is (expected[0] == 200)


@in_a_service(store_on=ManualJournal)
async def test_a_cancel_waits_for_an_action_that_is_being_admitted(service: Service) -> None:
    """Never 404 and then the job starts (W8)."""
    journal = service.journal
    assert isinstance(journal, ManualJournal)
    start = asyncio.create_task(service.start(headers={"Prefer": "respond-async"}))
    await until(lambda: journal.waiting)
    cancel = asyncio.create_task(service.cancel())
    await asyncio.sleep(0.01)
    assert not cancel.done()
    journal.settle()
    await until(lambda: journal.waiting)
    journal.settle()
    assert ((await cancel).status_code, (await cancel).json()["status"]) == (200, "cancelled")
    assert (await start).status_code in {202, 409}


@in_a_service(store_on=ManualJournal)
async def test_a_cancel_of_an_action_that_was_not_stored_is_told_so(service: Service) -> None:
    """There is nothing to stop."""
    journal = service.journal
    assert isinstance(journal, ManualJournal)
    start = asyncio.create_task(service.start())
    await until(lambda: journal.waiting)
    cancel = asyncio.create_task(service.cancel())
    await asyncio.sleep(0.01)
    journal.refuse(JournalFull("The volume is full."))
    assert ((await cancel).status_code, (await cancel).json()["code"]) == (507, "journal_full")
    assert (await start).status_code == 507
    assert (await service.cancel()).json()["code"] == "action_unknown"


@pytest.mark.parametrize("headers", [{}, {"X-AIP-Archive-Confirmation": "act_2"}, {"X-AIP-Archive-Confirmation": ""}])
@in_a_service()
async def test_an_archive_must_be_confirmed(service: Service, headers: dict[str, str]) -> None:
    """428 before anything is looked at."""
    await service.done()
    for path in ("/jobs/act_1", "/jobs/unknown"):
        response = await service.client.delete(path, headers=headers)
        assert (response.status_code, response.json()["code"]) == (428, "archive_unconfirmed")
    assert (await service.get("/jobs/act_1")).status_code == 200


@in_a_service()
async def test_an_id_of_blanks_must_be_confirmed_too(service: Service) -> None:
    """A header cannot carry outer blanks, but it must be there."""
    await service.done(" ")
    assert (await service.client.delete("/jobs/%20")).status_code == 428
    confirmation = {"X-AIP-Archive-Confirmation": ""}
    assert (await service.client.delete("/jobs/%20", headers=confirmation)).status_code == 200


@in_a_service()
async def test_what_runs_or_is_to_be_reconciled_is_not_archived(service: Service) -> None:
    """409 for both; what was cancelled before it started may go."""
    await service.begin()
    running = await service.archive()
    assert (running.status_code, running.json()["code"]) == (409, "still_running")
    await service.scheduler.start("act_1")
    await service.scheduler.end("act_1", Status.FAILED, Cause.TIMEOUT)
    is_open = await service.archive()
    assert (is_open.status_code, is_open.json()["code"]) == (409, "reconciliation_open")
    await service.begin("act_2")
    await service.cancel("act_2")
    assert (await service.archive("act_2")).status_code == 200
    wrong = await service.client.delete(
        "/jobs/act_1", params={"crew_id": "other"}, headers={"X-AIP-Archive-Confirmation": "act_1"}
    )
    assert wrong.json()["code"] == "crew_mismatch"


@in_a_service(store_on=ManualJournal)
async def test_archives_of_one_action_at_once_write_one_tombstone(service: Service) -> None:
    """The second finds it archived; one that the disk does not take leaves the record for the next."""
    journal = service.journal
    assert isinstance(journal, ManualJournal)
    done = asyncio.create_task(service.done())
    for _ in range(3):
        await until(lambda: journal.waiting)
        journal.settle()
        await asyncio.sleep(0)
    await done
    both = [asyncio.create_task(service.archive()) for _ in range(3)]
    await until(lambda: journal.waiting)
    await asyncio.sleep(0.01)
    assert len(journal.waiting) == 1
    journal.refuse(JournalBroken("The disk failed."))
    await until(lambda: journal.waiting)
    assert len(journal.waiting) == 1
    journal.settle()
    codes = sorted([(one.status_code, one.json().get("code")) for one in await asyncio.gather(*both)], key=str)
    assert codes == [(200, None), (410, "action_archived"), (507, "journal_broken")]
