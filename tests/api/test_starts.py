"""POST /jobs: what is refused, in which order, and what a start is answered with."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest

from crewai_sidecar.api import jobs
from crewai_sidecar.errors import JournalFull
from crewai_sidecar.frames import Crew
from crewai_sidecar.model import Cause, Status
from tests.api.service import Service, in_a_service, until
from tests.doubles.manual_journal import ManualJournal

BODY = {"crew_id": "crew", "action_id": "act_1"}


async def post(service: Service, content: bytes, path: str = "/jobs", key: bytes | None = b"k") -> tuple[int, str]:
    headers: list[tuple[bytes, bytes]] = [(b"idempotency-key", key)] if key is not None else []
    response = await service.client.post(path, content=content, headers=headers)
    return response.status_code, response.json().get("code", "")


@in_a_service()
async def test_a_start_is_answered_with_the_output_itself(service: Service) -> None:
    """Its stored bytes, unwrapped."""
    service.scheduler.answer = {"raw": "é", "n": 1.0}
    response = await service.start(value={"q": "?"})
    assert (response.status_code, response.content) == (200, b'{"raw":"\\u00e9","n":1.0}')
    assert response.headers["content-type"] == "application/json"
    assert service.scheduler.scheduled == {"act_1": {"q": "?"}}
    assert service.number("admissions_total", operation="run", outcome="new") == 1


@in_a_service()
async def test_a_repeat_is_answered_from_the_record_and_runs_nothing(service: Service) -> None:
    """Also while the service drains, and when crew and operation are gone."""
    await service.done(output={"raw": "first"})
    service.scheduler.draining = True
    service.scheduler.crews.clear()
    response = await service.start()
    assert (response.status_code, response.json()) == (200, {"raw": "first"})
    assert list(service.scheduler.scheduled) == ["act_1"]
    assert service.number("admissions_total", operation="run", outcome="repeat") == 1


@in_a_service()
async def test_fifty_identical_starts_at_once_are_one_action(service: Service) -> None:
    """All get its result."""
    starts = [asyncio.create_task(service.start()) for _ in range(50)]
    await until(lambda: service.store.watch.readers == 50)
    await service.scheduler.complete("act_1", {"raw": "one"})
    assert {(answer.status_code, answer.text) for answer in await asyncio.gather(*starts)} == {(200, '{"raw":"one"}')}
    assert len(service.scheduler.scheduled) == 1


@in_a_service()
async def test_respond_async_answers_once_the_record_is_durable(service: Service) -> None:
    """202 with Location, Preference-Applied and the record; a repeat that has ended is answered as if it had waited."""
    response = await service.start(" ü?", headers={"Prefer": "handling=lenient, Respond-Async; wait=5"})
    assert response.status_code == 202
    assert response.headers["location"] == "/jobs/%20%C3%BC%3F"
    assert response.headers["preference-applied"] == "respond-async"
    assert (response.json()["status"], response.json()["output"]) == ("running", None)
    await service.scheduler.complete(" ü?", {"raw": "x"})
    again = await service.start(" ü?", headers={"Prefer": "respond-async"})
    assert (again.status_code, again.json()) == (200, {"raw": "x"})


@in_a_service(store_on=ManualJournal)
async def test_a_start_waits_for_the_disk_and_507_means_that_nothing_happened(service: Service) -> None:
    """Whoever asked meanwhile is told the same, and the Action ID is free again."""
    journal = service.journal
    assert isinstance(journal, ManualJournal)
    both = [asyncio.create_task(service.start()) for _ in range(2)]
    await until(lambda: journal.waiting)
    await asyncio.sleep(0)
    assert (await service.get("/jobs/act_1")).status_code == 404
    journal.refuse(JournalFull("The volume is full."))
    for answer in await asyncio.gather(*both):
        assert (answer.status_code, answer.json()["code"]) == (507, "journal_full")
        assert answer.json()["action_id"] == "act_1"
    assert service.scheduler.scheduled == {}
    assert (await service.get("/health")).json()["admission"] == "journal_full"
    third = asyncio.create_task(service.start(headers={"Prefer": "respond-async"}))
    await until(lambda: journal.waiting)
    journal.settle()
    assert (await third).status_code == 202
    assert (await service.get("/health")).json()["admission"] == "open"
    assert service.number("admissions_total", operation="run", outcome="journal_full") == 2


INVALID_JSON = [
    b"",
    b"{",
    b"nope",
    b'{"a":1,"a":1}',
    b'{"input":{"x":NaN}}',
    b'{"input":{"x":Infinity}}',
    b'{"input":{"x":1e400}}',
    b'{"input":{"x":"\\ud800"}}',
    b'{"\\udfff":1}',
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"input":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}",
    b"[" * 100_000,
    b'{"timeout_ms":' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("content", INVALID_JSON)
@in_a_service()
async def test_what_is_not_strict_json_is_400_and_never_500(service: Service, content: bytes) -> None:
    """Whatever route it is sent to."""
    for path in ("/jobs", "/jobs/stream", "/runs", "/runs/stream", "/jobs/act_1/cancel"):
        assert await post(service, content, path) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"crew_id": None}, ["crew_id must be a text of 1 to 256 characters"]),
        ({"crew_id": ""}, ["crew_id"]),
        ({"action_id": "x" * 257}, ["action_id"]),
        ({"action_id": 7}, ["action_id"]),
        ({"operation": "sing"}, ["operation must be one of run, batch_run"]),
        ({"operation": None}, ["operation"]),
        ({"operation": ["run"]}, ["operation"]),
        ({"input": []}, ["input must be an object"]),
        ({"input": None}, ["input"]),
        ({"timeout_ms": 0}, ["timeout_ms must be an integer from 1 to 3,600,000 or null"]),
        ({"timeout_ms": 3_600_001}, ["timeout_ms"]),
        ({"timeout_ms": True}, ["timeout_ms"]),
        ({"timeout_ms": 1.0}, ["timeout_ms"]),
        ({"timeout_ms": "1"}, ["timeout_ms"]),
        ({"color": 1}, ["'color' is not a field"]),
        ({"crew_id": 1, "timeout_ms": "x", "x": 1, "y": 2}, ["crew_id", "timeout_ms", "'x'", "'y'"]),
    ],
)
@in_a_service()
async def test_every_fault_of_the_fields_is_listed(service: Service, fields: dict[str, Any], words: list[str]) -> None:
    """422, and all at once."""
    response = await service.client.post("/jobs", json=BODY | fields, headers={"Idempotency-Key": "k"})
    assert (response.status_code, response.json()["code"]) == (422, "invalid_fields")
    for word in words:
        assert word in response.json()["detail"]
    assert service.store.ledger.retained == 0


@in_a_service()
async def test_missing_fields_and_a_body_that_is_no_object_are_422(service: Service) -> None:
    """A JSON value of another kind is JSON all the same."""
    for content in (b"{}", b"[]", b"null", b'"text"', b"17"):
        assert await post(service, content) == (422, "invalid_fields")
    response = await service.client.post("/jobs", content=b"{}")
    assert response.json()["detail"] == "crew_id is required; action_id is required."


@pytest.mark.parametrize("size", [256, 1])
@in_a_service()
async def test_texts_are_bounded_by_characters(service: Service, size: int) -> None:
    """256 of them may be 1,024 bytes."""
    service.scheduler.answer = {}
    service.scheduler.crews["\U0001f600" * size] = Crew(crew_id="\U0001f600" * size)
    response = await service.start("\U0001f600" * size, crew_id="\U0001f600" * size)
    assert response.status_code == 200


@in_a_service()
async def test_a_body_over_8_mib_is_413_and_not_parsed(service: Service) -> None:
    """By its announced length before a byte is read, and by counted bytes where none is announced."""
    asked = 0

    async def chunks() -> Any:
        nonlocal asked
        for _ in range(40):
            asked += 1
            yield b" " * (1 << 20)

    counted = await service.client.post("/jobs", content=chunks())
    assert (counted.status_code, counted.json()["code"]) == (413, "body_too_large")
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer the-token"), (b"content-length", str((8 << 20) + 1).encode())]
    scope = {"type": "http", "method": "POST", "path": "/jobs", "query_string": b"", "headers": headers}
    await service.app(scope, receive, send)
    assert sent[0]["status"] == 413


@in_a_service()
async def test_an_input_is_measured_as_compact_utf_8(service: Service) -> None:
    """The connector's own measure: escapes and white space do not count."""
    service.scheduler.answer = {}
    room = 1_048_576 - len('{"a":""}')
    escaped = b'{"crew_id":"crew","action_id":"act_%d","input":{ "a" : "%s" }}'
    assert await post(service, escaped % (1, b"\\u00e9" * (room // 2))) == (200, "")
    assert await post(service, escaped % (2, b"x" * room)) == (200, "")
    assert await post(service, escaped % (3, b"x" * (room + 1))) == (413, "input_too_large")
    assert await post(service, escaped % (4, b"\\u00e9" * (room // 2 + 1))) == (413, "input_too_large")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (None, (428, "idempotency_key_missing")),
        (b"", (428, "idempotency_key_missing")),
        (b" \t ", (428, "idempotency_key_missing")),
        (b"\xb2", (400, "idempotency_key_invalid")),
        (b"a\x01b", (400, "idempotency_key_invalid")),
        (b"x" * 513, (400, "idempotency_key_invalid")),
        ("é".encode() * 257, (400, "idempotency_key_invalid")),
        ("é".encode() * 256, (200, "")),
        (b'"quoted"', (200, "")),
        (b"x" * 512, (200, "")),
    ],
)
@in_a_service()
async def test_the_key_is_the_header_s_bytes_as_utf_8(
    service: Service, key: bytes | None, expected: tuple[int, str]
) -> None:
    """Bounded in bytes, and never cut short."""
    service.scheduler.answer = {}
    assert await post(service, json.dumps(BODY).encode(), key=key) == expected


@in_a_service()
async def test_two_keys_are_refused(service: Service) -> None:
    """No parser may choose one of them."""
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "a")]
    response = await service.client.post("/jobs", json=BODY, headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, "idempotency_key_invalid")


@in_a_service(allowed_operations=("run", "batch_run"))
async def test_a_start_is_refused_by_the_first_check_that_applies(service: Service) -> None:
    """The order of the guide, from its end to its beginning: each request has all the faults of the ones before it."""
    await service.done("act_known")
    await service.done("act_archived")
    await service.archive("act_archived")
    service.scheduler.full = True
    found = []
    body: dict[str, Any] = {"crew_id": "crew", "action_id": "act_new"}
    headers = {"Idempotency-Key": "k"}
    path = "/jobs"

    async def send(**more: Any) -> None:
        response = await service.client.post(path, headers=headers, **({"json": body} | more))
        found.append((response.status_code, response.json()["code"]))

    await send()
    body["crew_id"] = "nobody"
    await send()
    body["action_id"] = "a/b"
    await send()
    body |= {"operation": "batch_run", "input": {"inputs": []}}
    await send()
    body["operation"] = "status"
    await send()
    service.scheduler.draining = True
    await send()
    body["action_id"] = "act_known"
    await send()
    headers["Idempotency-Key"] = "bad\x01key"
    await send()
    headers["Idempotency-Key"] = " "
    await send()
    body["input"] = {"a": "x" * 1_048_576}
    await send()
    path = "/runs"
    await send()
    body["timeout_ms"] = 0
    await send()
    await send(content=b"{", json=None)
    await send(content=b" " * ((8 << 20) + 1), json=None)
    headers["Authorization"] = "Bearer wrong"
    await send(content=b" " * ((8 << 20) + 1), json=None)
    assert found == [
        (503, "queue_full"),
        (404, "crew_unknown"),
        (422, "invalid_action_id"),
        (422, "invalid_input"),
        (403, "operation_not_allowed"),
        (503, "draining"),
        (409, "request_conflict"),
        (400, "idempotency_key_invalid"),
        (428, "idempotency_key_missing"),
        (413, "input_too_large"),
        (400, "alias_operation"),
        (422, "invalid_fields"),
        (400, "invalid_json"),
        (413, "body_too_large"),
        (401, "unauthorized"),
    ]
    assert list(service.scheduler.scheduled) == ["act_known", "act_archived"]


@in_a_service()
async def test_an_archived_action_is_410_and_another_request_of_its_id_409(service: Service) -> None:
    """The tombstone has the hash."""
    await service.done()
    await service.archive()
    assert (await service.start()).json()["code"] == "action_archived"
    assert (await service.start(value={"x": 1})).json()["code"] == "request_conflict"


@pytest.mark.parametrize("action_id", [".", "..", "a/b", "/", "a\x00", "a\x7f", "a\x85", "a\n"])
@in_a_service()
async def test_an_action_id_that_no_path_could_address_is_refused(service: Service, action_id: str) -> None:
    """It could be admitted, but never read, cancelled or archived (W20)."""
    response = await service.start(action_id)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_action_id")


@in_a_service()
async def test_queue_full_and_draining_say_when_to_come_back(service: Service) -> None:
    """And nothing was stored."""
    service.scheduler.full = True
    full = await service.start()
    assert (full.status_code, full.headers["retry-after"]) == (503, "1")
    service.scheduler.draining = True
    draining = await service.start()
    assert (draining.json()["code"], draining.headers["retry-after"]) == ("draining", "5")
    assert service.store.ledger.retained == 0


@pytest.mark.parametrize(
    ("status", "cause", "started", "expected"),
    [
        (Status.CANCELLED, Cause.CANCELLED, True, (409, "run_cancelled")),
        (Status.CANCELLED, Cause.SHUTDOWN, False, (409, "run_cancelled")),
        (Status.FAILED, Cause.EXCEPTION, True, (502, "run_failed")),
        (Status.FAILED, Cause.WORKER_LOST, True, (502, "run_failed")),
        (Status.FAILED, Cause.TIMEOUT, True, (504, "wait_timeout")),
    ],
)
@in_a_service()
async def test_a_waiting_caller_is_told_how_it_ended(
    service: Service, status: Status, cause: Cause, started: bool, expected: tuple[int, str]
) -> None:
    """The body has what the record says; a later repeat of a timeout is 502, all others say the same again."""
    waiting = asyncio.create_task(service.start())
    await until(lambda: service.store.watch.readers == 1)
    if started:
        await service.scheduler.start("act_1")
    await service.scheduler.end("act_1", status, cause, "SomeError")
    answer = await waiting
    body = answer.json()
    assert (answer.status_code, body["code"]) == expected
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["type"] == "about:blank"
    assert body["status"] == answer.status_code
    assert (body["action_id"], body["cause"], body["error_type"]) == ("act_1", cause, "SomeError")
    assert (body["provider_started"], body["to_be_reconciled"]) == (started, started)
    assert body["uncertain_outcome"] is False
    again = await service.start()
    assert again.json()["code"] == ("run_failed" if cause is Cause.TIMEOUT else expected[1])


@in_a_service()
async def test_a_wait_that_ends_first_is_504_and_the_action_goes_on(service: Service) -> None:
    """Nothing is said about an ending that is not there."""
    answer = await service.start(timeout_ms=20)
    assert (answer.status_code, answer.json()["code"]) == (504, "wait_timeout")
    assert "cause" not in answer.json()
    await service.scheduler.complete("act_1", {"raw": "late"})
    assert (await service.start(timeout_ms=20)).json() == {"raw": "late"}


@in_a_service()
async def test_a_wait_ends_when_the_service_closes_over_a_held_ending(service: Service) -> None:
    """504 and not a cut connection; an ending that is there is told."""
    held = asyncio.create_task(service.start("act_held"))
    told = asyncio.create_task(service.start("act_told"))
    await until(lambda: service.store.watch.readers == 2)
    await service.scheduler.end("act_told", Status.CANCELLED, Cause.SHUTDOWN)
    service.closing.set()
    assert ((await held).status_code, (await held).json()["code"]) == (504, "wait_timeout")
    assert ((await told).json()["code"], (await told).json()["cause"]) == ("run_cancelled", "shutdown")


@in_a_service()
async def test_a_caller_that_goes_away_leaves_no_waiter_behind(service: Service) -> None:
    """The Action goes on."""
    async with service.listening() as (client, _):
        waiting = asyncio.create_task(client.post("/jobs", json=BODY, headers={"Idempotency-Key": "k"}))
        await until(lambda: service.store.watch.readers == 1)
        waiting.cancel()
        await until(lambda: service.store.watch.readers == 0)
        assert service.scheduler.queued == 1
        await until(lambda: service.number("http_answers_total", route="/jobs", method="POST", code="499") == 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"00-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-01", ("ab" * 16, "cd" * 8)),
        (b"01-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-01-later", ("ab" * 16, "cd" * 8)),
        (b"00-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-01-later", (None, None)),
        (b"ff-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-01", (None, None)),
        (b"00-" + b"00" * 16 + b"-" + b"cd" * 8 + b"-01", (None, None)),
        (b"00-" + b"ab" * 16 + b"-" + b"00" * 8 + b"-01", (None, None)),
        (b"00-" + b"AB" * 16 + b"-" + b"cd" * 8 + b"-01", (None, None)),
        (b"\xff", (None, None)),
    ],
)
@in_a_service()
async def test_a_traceparent_becomes_part_of_the_record(
    service: Service, value: bytes, expected: tuple[str | None, str | None]
) -> None:
    """One that is not valid is as if it were not there."""
    headers: dict[bytes, bytes] = {b"traceparent": value, b"prefer": b"respond-async", b"idempotency-key": b"k"}
    response = await service.client.post("/jobs", json=BODY, headers=headers)
    assert (response.json()["trace_id"], response.json()["span_id"]) == expected


@in_a_service()
async def test_the_aliases_start_runs_only(service: Service) -> None:
    """POST /runs is POST /jobs for the operation run."""
    service.scheduler.answer = {"raw": "x"}
    assert (await service.start(path="/runs")).json() == {"raw": "x"}
    assert (await service.start(path="/runs", operation="run")).json() == {"raw": "x"}
    for path in ("/runs", "/runs/stream"):
        refused = await service.start("act_2", path=path, operation="train", value={"not": "checked yet"})
        assert (refused.status_code, refused.json()["code"]) == (400, "alias_operation")


@in_a_service()
async def test_a_fault_of_the_service_is_500_and_says_nothing(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the traceback and the Action."""

    def fails(input_bytes: int) -> None:
        raise ZeroDivisionError("s3cret")

    service.scheduler.reserve = fails  # type: ignore[method-assign]  # what cannot happen
    response = await service.start()
    assert (response.status_code, response.json()["code"]) == (500, "internal")
    assert "s3cret" not in response.text
    assert "Zero" not in response.text
    (line,) = [record for record in caplog.records if record.name == "crewai_sidecar.api.door"]
    assert line.exc_info is not None
    assert line.__dict__["action_id"] == "act_1"


def test_the_wait_of_a_start_without_a_timeout_is_ten_minutes() -> None:
    """Counted from the admission; the operation's timer has the same length and begins later."""
    assert jobs.WAIT_MS == 600_000


@in_a_service()
async def test_the_content_type_of_a_body_is_not_looked_at(service: Service) -> None:
    """What counts is that it is JSON."""
    service.scheduler.answer = {}
    headers = {"Content-Type": "text/plain", "Idempotency-Key": "k"}
    response = await service.client.post("/jobs", content=json.dumps(BODY), headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (b"[]," * 100_000 + b"[]", 200),
        (b"[]," * 1_000_000 + b"[]", (413, "input_too_large")),
        (b"9" * 4_300 + (b"," + b"9" * 4_300) * 500, (413, "input_too_large")),
        (b"[]," * 200_000 + b"NaN", (400, "invalid_json")),
    ],
)
@in_a_service()
async def test_large_bodies_of_many_values_are_read_one_at_a_time_and_the_loop_goes_on(
    service: Service, values: bytes, expected: Any
) -> None:
    """They are parsed and measured on another thread, and nothing of that is left."""
    body = b'{"crew_id":"crew","action_id":"act_%d","input":{"a":[' + values.replace(b"%", b"%%") + b"]}}"
    headers = {"Idempotency-Key": "k", "Prefer": "respond-async"}
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    answers = await asyncio.gather(
        *(service.client.post("/jobs", content=body % number, headers=headers) for number in range(2))
    )
    ticking.cancel()
    for answer in answers:
        if expected == 200:
            assert answer.status_code == 202
        else:
            assert (answer.status_code, answer.json()["code"]) == expected
    assert ticks > 2
    assert gc.isenabled()
