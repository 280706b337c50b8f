"""Records, the list of records, and pages of events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from crewai_sidecar.model import Cause, Status
from crewai_sidecar.views import EventsPage
from tests.api.service import Service, in_a_service

FIELDS = {
    "action_id", "crew_id", "operation", "status", "event_count", "output", "cause", "error_type", "provider_started",
    "worker_stopped", "uncertain_outcome", "finished_late", "to_be_reconciled", "accepted_at", "started_at", "ended_at",
    "timeout_ms", "cancel_reason", "cancelled_by", "events_dropped", "output_truncated", "output_bytes", "request_hash",
    "hash_version", "key_digest", "trace_id", "span_id", "task_ids", "model_response_ids", "tool_names", "decisions",
}  # fmt: skip


@in_a_service()
async def test_a_record_has_these_fields(service: Service) -> None:
    """The list is public; the output is null before a completed ending."""
    await service.begin(value={"secret": "in the input"}, timeout_ms=5000)
    running = (await service.get("/jobs/act_1")).json()
    assert running.keys() == FIELDS
    assert (running["status"], running["output"], running["event_count"]) == ("running", None, 0)
    assert (running["timeout_ms"], running["hash_version"], len(running["request_hash"])) == (5000, 1, 64)
    await service.scheduler.complete("act_1", {"raw": "done"})
    response = await service.get("/runs/act_1")
    assert (response.json()["status"], response.json()["output"]) == ("completed", {"raw": "done"})
    assert response.json()["event_count"] == 2
    assert "secret" not in response.text


ODD_IDS = ["stream", "a b", "ü", "%41", "a%2Fb", "a+b", "a?b", "a#b", "...", "~", "'", "a\\b", " lead", "events"]


@pytest.mark.parametrize("action_id", ODD_IDS)
@in_a_service()
async def test_whatever_can_be_admitted_can_be_read_cancelled_and_archived(service: Service, action_id: str) -> None:
    """Also an id that is the name of a route, and over a real connection."""
    async with service.listening() as (client, _):
        headers = {"Idempotency-Key": "k", "Prefer": "respond-async"}
        body = {"crew_id": "crew", "action_id": action_id}
        started = await client.post("/jobs", json=body, headers=headers)
        path = started.headers["location"]
        for read in (path, path + "/events", path.replace("jobs", "runs")):
            found = await client.get(read)
            assert (found.status_code, found.json()["action_id"]) == (200, action_id)
        for prefix in ("/jobs", "/runs"):
            cancelled = await client.post(path.replace("/jobs", prefix) + "/cancel", json=body)
            assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
        confirmation = {b"x-aip-archive-confirmation": action_id.strip().encode()}
        archived = await client.delete(path, headers=confirmation)
        assert (archived.status_code, archived.json()["action_id"]) == (200, action_id)


@in_a_service()
async def test_an_unknown_action_is_404(service: Service) -> None:
    """On every route that names one."""
    for response in (
        await service.get("/jobs/act_no"),
        await service.get("/jobs/act_no/events"),
        await service.get("/jobs/act_no/events", headers={"Accept": "text/event-stream"}),
        await service.get("/jobs?after=act_no"),
        await service.get("/runs/act_no"),
        await service.cancel("act_no"),
        await service.archive("act_no"),
    ):
        assert (response.status_code, response.json()["code"]) == (404, "action_unknown")


@in_a_service()
async def test_an_archived_action_is_410_on_every_route(service: Service) -> None:
    """Its id stays spent."""
    await service.done()
    assert (await service.archive()).json() == {"archived": True, "action_id": "act_1"}
    for response in (
        await service.get("/jobs/act_1"),
        await service.get("/jobs/act_1/events"),
        await service.get("/jobs/act_1/events", headers={"Accept": "text/event-stream"}),
        await service.get("/jobs?after=act_1"),
        await service.get("/runs/act_1"),
        await service.cancel(),
        await service.cancel(path="/runs/act_1/cancel"),
        await service.archive(),
        await service.start(),
        await service.start(path="/jobs/stream"),
        await service.start(path="/runs"),
    ):
        assert (response.status_code, response.json()["code"]) == (410, "action_archived")


@in_a_service()
async def test_a_read_that_names_another_crew_is_refused(service: Service) -> None:
    """Whoever may read one crew's records says so, and gets no other's (W19)."""
    await service.done()
    for path in ("/jobs/act_1", "/jobs/act_1/events", "/runs/act_1"):
        assert (await service.get(path, params={"crew_id": "crew"})).status_code == 200
        refused = await service.get(path, params={"crew_id": "other"})
        assert (refused.status_code, refused.json()["code"]) == (404, "crew_mismatch")
        assert (await service.get(path + "?crew_id=crew&crew_id=crew")).status_code == 422
    assert (await service.cancel(crew_id="other")).json()["code"] == "crew_mismatch"


@in_a_service(allowed_operations=("run", "batch_run"))
async def test_the_aliases_show_and_cancel_runs_only(service: Service) -> None:
    """400 for any other operation."""
    await service.begin()
    await service.begin("act_2", {"inputs": [{}]}, operation="batch_run")
    for response in (
        await service.get("/runs/act_2"),
        await service.cancel("act_2", path="/runs/act_2/cancel"),
    ):
        assert (response.status_code, response.json()["code"]) == (400, "alias_operation")
    assert (await service.get("/runs/act_1")).status_code == 200
    assert (await service.cancel(path="/runs/act_1/cancel")).json()["status"] == "cancelled"


@in_a_service()
async def test_the_list_is_in_the_order_of_admission_and_goes_on_after_the_last_one_seen(service: Service) -> None:
    """Filters hold for every page; views have no output."""
    for number in range(7):
        await service.begin(f"act_{number}", crew_id="crew" if number % 2 else "other")
    await service.scheduler.complete("act_1", {"raw": "x"})
    await service.scheduler.start("act_2")
    await service.scheduler.end("act_2", Status.FAILED, Cause.EXCEPTION, "E")

    async def ids(**params: Any) -> tuple[list[str], str | None]:
        page = (await service.get("/jobs", params=params)).json()
        return [job["action_id"][4:] for job in page["jobs"]], page["next"]

    assert await ids() == (list("0123456"), None)
    assert await ids(limit=3) == (list("012"), "act_2")
    assert await ids(limit=3, after="act_2") == (list("345"), "act_5")
    assert await ids(limit=3, after="act_5") == (["6"], None)
    assert await ids(limit=7) == (list("0123456"), None)
    assert await ids(after="act_6") == ([], None)
    assert await ids(status="running") == (list("03456"), None)
    assert await ids(status="running", limit=2, after="act_3") == (list("45"), "act_5")
    assert await ids(crew_id="other") == (list("0246"), None)
    assert await ids(crew_id="nobody") == ([], None)
    assert await ids(to_be_reconciled="true") == (["2"], None)
    assert await ids(to_be_reconciled="False", status="completed") == (["1"], None)
    page = (await service.get("/jobs")).json()
    assert page["jobs"][0].keys() == FIELDS - {"output"}


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "limit=", "limit=1&limit=2", "status=done", "to_be_reconciled=perhaps"],
)
@in_a_service()
async def test_a_list_that_asks_for_what_is_not_there_is_422(service: Service, query: str) -> None:
    """The name of the parameter is in the answer."""
    response = await service.get(f"/jobs?{query}")
    assert (response.status_code, response.json()["code"]) == (422, "invalid_fields")
    assert query.partition("=")[0] in response.json()["detail"]


@in_a_service()
async def test_a_page_has_the_events_from_the_cursor_on(service: Service) -> None:
    """The composed ending among them; the cursor behind it is an empty page."""
    await service.begin()
    await service.scheduler.start("act_1")
    await service.scheduler.emit("act_1", "a", "b")
    page = (await service.get("/jobs/act_1/events?cursor=1")).json()
    assert page.pop("events") == [
        {"event": "chunk", "sequence": 1, "data": {"content": "a"}},
        {"event": "chunk", "sequence": 2, "data": {"content": "b"}},
    ]
    assert page == {"action_id": "act_1", "cursor": 1, "next_cursor": 3, "status": "running"}
    await service.scheduler.complete("act_1", {"raw": "é"})
    page = (await service.get("/jobs/act_1/events?cursor=3")).json()
    assert page["events"] == [{"event": "completed", "sequence": 3, "data": {"raw": "é"}}]
    assert (page["status"], page["next_cursor"]) == ("completed", 4)
    assert (await service.get("/jobs/act_1/events?cursor=4")).json()["events"] == []
    assert len((await service.get("/jobs/act_1/events")).json()["events"]) == 4


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        ("-1", (416, "cursor_outside")),
        ("3", (416, "cursor_outside")),
        ("9" * 40, (416, "cursor_outside")),
        ("-" + "9" * 40, (416, "cursor_outside")),
        ("9" * 41, (422, "invalid_fields")),
        ("x", (422, "invalid_fields")),
        ("", (422, "invalid_fields")),
        ("1.0", (422, "invalid_fields")),
        ("1_0", (422, "invalid_fields")),
        ("٣", (422, "invalid_fields")),
        ("9" * 5000, (422, "invalid_fields")),
    ],
)
@in_a_service()
async def test_a_cursor_outside_of_the_events_is_416(
    service: Service, cursor: str, expected: tuple[int, str], accept: str
) -> None:
    """What is no integer is 422."""
    await service.done()
    response = await service.get("/jobs/act_1/events", params={"cursor": cursor}, headers={"Accept": accept})
    assert (response.status_code, response.json()["code"]) == expected
    assert response.json()["action_id"] == "act_1"


@in_a_service(max_events_per_run=5000)
async def test_a_page_is_sent_in_pieces_and_its_length_is_known(service: Service) -> None:
    """A reader that reads slowly has one piece in memory, not a page of its own."""
    await service.begin()
    await service.scheduler.start("act_1")
    await service.scheduler.emit("act_1", *["x" * 1000] * 2000)
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("a page has no body to read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer the-token")]
    scope = {"type": "http", "method": "GET", "path": "/jobs/act_1/events", "query_string": b"", "headers": headers}
    await service.app(scope, receive, send)
    begin, *bodies = sent
    body = b"".join(message["body"] for message in bodies)
    assert dict(begin["headers"])[b"content-length"] == b"%d" % len(body)
    assert dict(begin["headers"])[b"content-type"] == b"application/json"
    assert max(len(message["body"]) for message in bodies) < (256 << 10) + 2000
    assert len(bodies) > len(body) // (300 << 10)
    page = msgspec.json.decode(body, type=EventsPage)
    assert [event["sequence"] for event in page.events] == list(range(page.next_cursor))
