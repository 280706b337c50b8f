"""Streams of events: what is sent, when, to whom, and what is left when a reader goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource, ServerSentEvent

from crewai_sidecar import codec, transitions
from crewai_sidecar.ledger import Entry
from crewai_sidecar.model import Cause, Record, Status
from tests.api.service import TOKEN, Service, in_a_service, until

SSE = {"Accept": "text/event-stream"}


async def read(service: Service, path: str, **headers: str) -> list[ServerSentEvent]:
    """All events of a stream that ends, by a conforming parser that is not ours."""
    response = await service.get(path, headers=SSE | headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream"
    return [event async for event in EventSource(response).aiter_sse()]


@contextlib.asynccontextmanager
async def reader(client: httpx.AsyncClient, path: str, **options: Any) -> AsyncIterator[AsyncIterator[str]]:
    async with client.stream("GET", path, headers=SSE, **options) as response:
        assert response.status_code == 200
        yield response.aiter_lines()


async def ended_with_chunks(service: Service, *contents: str) -> list[Any]:
    """Run an Action to its end; its events as the page shows them."""
    await service.begin()
    await service.scheduler.start("act_1")
    await service.scheduler.emit("act_1", *contents)
    await service.scheduler.complete("act_1", {"raw": "done"})
    return list((await service.get("/jobs/act_1/events")).json()["events"])


@in_a_service()
async def test_a_stream_has_the_page_s_events_as_frames(service: Service) -> None:
    """id, event and data each on one line, LF only, then a blank line."""
    page = await ended_with_chunks(service, "a", "b")
    response = await service.get("/jobs/act_1/events", headers=SSE)
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers
    frames = response.content.split(b"\n\n")
    assert frames.pop() == b""
    assert frames[1] == b'id: 1\nevent: chunk\ndata: {"event":"chunk","sequence":1,"data":{"content":"a"}}'
    events = await read(service, "/jobs/act_1/events")
    assert [json.loads(event.data) for event in events] == page
    assert [(event.id, event.event) for event in events] == [(str(one["sequence"]), one["event"]) for one in page]


@in_a_service()
async def test_a_start_streams_from_sequence_zero_also_when_it_is_a_repeat(service: Service) -> None:
    """Last-Event-ID does not count there: the contract starts at 0."""
    page = await ended_with_chunks(service, "a")
    for path in ("/jobs/stream", "/runs/stream"):
        response = await service.start(path=path, headers={"Last-Event-ID": "1"})
        assert response.headers["content-type"] == "text/event-stream"
        assert [json.loads(one.data) async for one in EventSource(response).aiter_sse()] == page


@in_a_service()
async def test_a_start_that_is_refused_is_a_problem_and_no_stream(service: Service) -> None:
    """The status is known before the first byte."""
    response = await service.start(path="/jobs/stream", crew_id="nobody")
    assert (response.status_code, response.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "TEXT/Event-Stream;q=1", "application/json, text/event-stream"]
)
@in_a_service()
async def test_accept_chooses_between_page_and_stream(service: Service, accept: str) -> None:
    """A substring, whatever its case."""
    await service.done()
    response = await service.get("/jobs/act_1/events", headers={"Accept": accept})
    assert response.headers["content-type"] == "text/event-stream"


@in_a_service()
async def test_a_stream_is_resumed_by_cursor_and_by_last_event_id(service: Service) -> None:
    """No event twice, none missing; the cursor counts where both are there."""
    page = await ended_with_chunks(service, "a", "b", "c")
    for cursor in range(len(page) + 1):
        events = await read(service, f"/jobs/act_1/events?cursor={cursor}", **{"Last-Event-ID": "0"})
        assert [json.loads(event.data) for event in events] == page[cursor:]
    for last in range(len(page)):
        events = await read(service, "/jobs/act_1/events", **{"Last-Event-ID": f" {last}"})
        assert [json.loads(event.data) for event in events] == page[last + 1 :]
    assert len(await read(service, "/jobs/act_1/events", **{"Last-Event-ID": ""})) == len(page)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["2"], (416, "cursor_outside")),
        (["9" * 30], (416, "cursor_outside")),
        (["-1"], (416, "cursor_outside")),
        (["x"], (422, "invalid_fields")),
        (["1.0"], (422, "invalid_fields")),
        (["0", "0"], (422, "invalid_fields")),
    ],
)
@in_a_service()
async def test_a_last_event_id_that_is_not_the_record_s_is_refused(
    service: Service, values: list[str], expected: tuple[int, str]
) -> None:
    """A stream from the first event would be taken for what comes after that one. A page does not look at it."""
    await service.done()
    named = [("Last-Event-ID", value) for value in values]
    response = await service.get("/jobs/act_1/events", headers=[*SSE.items(), *named])
    assert (response.status_code, response.json()["code"]) == expected
    assert (await service.get("/jobs/act_1/events", headers=named)).status_code == 200


@in_a_service()
async def test_events_are_shown_as_they_become_durable(service: Service) -> None:
    """The headers come at once, each event with its commit, the end with the ending."""
    await service.begin()
    async with service.listening() as (client, _), reader(client, "/jobs/act_1/events") as lines:
        await until(lambda: service.store.watch.readers == 1)
        assert service.number("event_readers") == 1
        await service.scheduler.start("act_1")
        assert [await anext(lines) for _ in range(2)] == ["id: 0", "event: started"]
        await service.scheduler.emit("act_1", "a", "b")
        await anext(lines)
        await anext(lines)
        assert [await anext(lines) for _ in range(6)][4:] == ["id: 2", "event: chunk"]
        await service.scheduler.end("act_1", Status.FAILED, Cause.TIMEOUT, "TimeoutError")
        rest = [line async for line in lines]
        assert rest[2:4] == ["id: 3", "event: failed"]
    assert service.store.watch.readers == 0


@in_a_service(heartbeat_seconds=0.01)
async def test_a_quiet_stream_is_kept_alive_by_comments(service: Service) -> None:
    """They consume no id, and go on until there is news (W15)."""
    await service.begin()
    async with service.listening() as (client, _), reader(client, "/jobs/act_1/events") as lines:
        assert [await anext(lines) for _ in range(4)] == [": keep-alive", "", ": keep-alive", ""]
        await service.scheduler.complete("act_1", {})
        rest = [line async for line in lines]
        assert [line for line in rest if line.startswith("id")] == ["id: 0", "id: 1"]


@in_a_service()
async def test_two_hundred_readers_that_go_leave_nothing_behind(service: Service) -> None:
    """Before the first event or after it, while nothing happens; the run goes on."""
    await service.begin()
    headers = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\nAccept: text/event-stream\r\n"
    request = f"GET /jobs/act_1/events HTTP/1.1\r\n{headers}\r\n"
    async with service.listening() as (_, port):
        before = len(asyncio.all_tasks())
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request.encode())
            writers.append(writer)
        await until(lambda: service.store.watch.readers == 200)
        await service.scheduler.start("act_1")
        await until(lambda: service.store.watch.readers == 200)
        for number, writer in enumerate(writers):
            if number % 2:
                writer.transport.abort()
            else:
                writer.close()
        await until(lambda: service.store.watch.readers == 0)
        await until(lambda: service.number("event_readers") == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert service.scheduler.active == 1


@in_a_service()
async def test_a_stream_whose_ending_is_held_ends_with_its_cursor_when_the_service_closes(service: Service) -> None:
    """No terminal event is made up; one whose ending is there is sent to its end."""
    await service.begin()
    await service.scheduler.start("act_1")
    async with service.listening() as (client, _), reader(client, "/jobs/act_1/events") as lines:
        await anext(lines)
        await until(lambda: service.store.watch.readers == 1)
        service.closing.set()
        rest = [line async for line in lines]
        assert rest[-2:] == [": closing; go on with cursor=1", ""]
        async with reader(client, "/jobs/act_1/events?cursor=1") as more:
            assert await anext(more) == ": closing; go on with cursor=1"
        await service.scheduler.complete("act_1", {})
        assert [event.event for event in await read(service, "/jobs/act_1/events")] == ["started", "completed"]


@in_a_service()
async def test_a_stream_of_an_action_that_is_archived_meanwhile_ends(service: Service) -> None:
    """After its ending, which is what it was open for."""
    await service.begin()
    async with service.listening() as (client, _), reader(client, "/jobs/act_1/events") as lines:
        await until(lambda: service.store.watch.readers == 1)
        await service.scheduler.complete("act_1", {})
        assert (await service.archive()).status_code == 200
        assert [line async for line in lines if line.startswith("event")] == ["event: started", "event: completed"]


@in_a_service(max_events_per_run=5000)
async def test_a_slow_reader_gets_the_ending_of_an_action_that_was_archived_meanwhile(service: Service) -> None:
    """It has not even seen that the Action ended when the record goes."""
    await service.begin()
    await service.scheduler.start("act_1")
    await service.scheduler.emit("act_1", *["x" * 1000] * 500)
    sent: list[bytes] = []
    reads, stays = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        await stays.wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) > 1:
            await reads.wait()

    headers = [(b"authorization", b"Bearer the-token"), (b"accept", b"text/event-stream")]
    scope = {"type": "http", "method": "GET", "path": "/jobs/act_1/events", "query_string": b"", "headers": headers}
    stream = asyncio.create_task(service.app(scope, receive, send))
    await until(lambda: len(sent) == 2)
    await service.scheduler.complete("act_1", {})
    assert (await service.archive()).status_code == 200
    reads.set()
    await asyncio.wait_for(stream, 5)
    assert b"event: completed" in b"".join(sent)


@pytest.mark.parametrize(
    "text",
    ["a\rb", "a\r\nb", "a\n\nb", "event: completed\n\n", "id: 999\n", " lead", "\u2028x\u0085y\u2029", "\x00", "", ":"],
)
@in_a_service()
async def test_text_cannot_forge_an_event(service: Service, text: str) -> None:
    """Parsed back it is the text that was written."""
    await ended_with_chunks(service, text, text)
    events = await read(service, "/jobs/act_1/events")
    assert [event.event for event in events] == ["started", "chunk", "chunk", "completed"]
    assert json.loads(events[1].data)["data"] == {"content": text}


@in_a_service(max_events_per_run=5000)
async def test_many_events_are_few_sends_of_bounded_size(service: Service) -> None:
    """About 256 KiB each, and one event more at most."""
    await service.begin()
    await service.scheduler.start("act_1")
    await service.scheduler.emit("act_1", *["x" * 1000] * 2000)
    await service.scheduler.complete("act_1", {})
    sends: list[bytes] = []
    more = asyncio.Event()

    async def receive() -> Any:
        await more.wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sends.append(message["body"])

    headers = [(b"authorization", b"Bearer the-token"), (b"accept", b"text/event-stream")]
    scope = {"type": "http", "method": "GET", "path": "/jobs/act_1/events", "query_string": b"", "headers": headers}
    await service.app(scope, receive, send)
    sizes = [len(body) for body in sends]
    assert sum(sizes) > 2_000_000
    assert len(sizes) < 15
    assert max(sizes) < (256 << 10) + 2000
    assert b"".join(sends).count(b"\n\n") == 2002


@in_a_service()
async def test_an_event_written_in_another_order_keeps_its_name(service: Service) -> None:
    """The name is sliced out of our own form, and decoded out of any other."""
    await service.begin()
    await service.scheduler.start("act_1")
    entry = service.store.find("act_1")
    assert isinstance(entry, Entry)
    assert isinstance(entry.record, Record)
    foreign = b'{"data":{"content":"\\"event\\":\\"x\\""},"event":"chunk","sequence":1}'
    await service.store.commit(transitions.extended(entry.record, (foreign,), [], 0))
    await service.scheduler.complete("act_1", {})
    events = await read(service, "/jobs/act_1/events")
    assert [event.event for event in events] == ["started", "chunk", "completed"]
    assert events[1].data.encode() == foreign


@in_a_service()
async def test_an_output_over_a_frame_is_cut_in_the_stream_and_whole_in_the_record(service: Service) -> None:
    """No frame passes the connector's 1 MiB (W5)."""
    await service.done(output={"raw": "x" * 3_000_000, "token_usage": {}, "tasks_output": []})
    response = await service.get("/jobs/act_1/events", headers=SSE)
    frames = response.content.split(b"\n\n")
    assert max(map(len, frames)) <= 1_048_576
    assert json.loads(frames[-2].split(b"data: ")[1])["data"]["output_truncated"] is True
    assert len((await service.get("/jobs/act_1")).json()["output"]["raw"]) == 3_000_000


def test_the_prefix_that_names_are_sliced_by_is_the_codec_s() -> None:
    """Where the codec changes, this fails and not a stream."""
    assert codec.encode_event("chunk", 0, {}).startswith(b'{"event":"chunk"')
