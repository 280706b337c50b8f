"""Streams of a real service: live, resumed, hostile, dropped."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from httpx_sse import EventSource

from tests.process.sidecar import TOKEN, Sidecar, until


@contextmanager
def stream(sidecar: Sidecar, path: str, method: str = "GET", **options: Any) -> Iterator[httpx.Response]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream", **options.pop("headers", {})}
    with httpx.stream(method, sidecar.url + path, headers=headers, timeout=30, **options) as response:
        yield response


def read(sidecar: Sidecar, path: str, **options: Any) -> list[Any]:
    """All events of a stream by a conforming parser that is not ours."""
    with stream(sidecar, path, **options) as response:
        assert response.status_code == 200, response.read()
        return list(EventSource(response).iter_sse())


def test_a_start_streams_from_the_first_event_to_the_terminal_one(shared: Sidecar) -> None:
    """Contiguous sequences, id lines, and the same events as the page."""
    body = {
        "crew_id": "streaming",
        "action_id": "act_stream",
        "input": shared.with_effects({"chunks": 5, "pause": 0.05}),
    }
    events = read(shared, "/jobs/stream", method="POST", json=body, headers={"Idempotency-Key": "k"})
    data = [json.loads(event.data) for event in events]
    assert [one["sequence"] for one in data] == list(range(len(data)))
    assert [event.id for event in events] == [str(one["sequence"]) for one in data]
    assert [event.event for event in events] == [one["event"] for one in data]
    assert data[0]["event"] == "started"
    assert data[-1]["event"] == "completed"
    assert (
        "".join(one["data"]["content"] for one in data if one["event"] == "chunk")
        == "word-0 word-1 word-2 word-3 word-4 "
    )
    assert data == shared.events("act_stream")
    again = read(shared, "/jobs/stream", method="POST", json=body, headers={"Idempotency-Key": "k"})
    assert [json.loads(event.data) for event in again] == data


def test_chunks_are_shown_while_the_run_goes_on(shared: Sidecar) -> None:
    """Not at its end: the first chunk is there while the record is running."""
    action = shared.begin("streaming", {"chunks": 40, "pause": 0.05})
    with stream(shared, f"/jobs/{action}/events") as response:
        for event in EventSource(response).iter_sse():
            if event.event == "chunk":
                assert shared.record(action)["status"] == "running"
                break
    shared.cancel(action, "streaming")


def test_a_stream_is_resumed_by_cursor_and_by_last_event_id(shared: Sidecar) -> None:
    """No event twice, none missing."""
    action = shared.begin("streaming", {"chunks": 6, "pause": 0.02})
    shared.ended(action)
    whole = shared.events(action)
    for cursor in range(len(whole)):
        by_cursor = [json.loads(e.data) for e in read(shared, f"/jobs/{action}/events?cursor={cursor}")]
        assert by_cursor == whole[cursor:]
        by_id = read(shared, f"/jobs/{action}/events", headers={"Last-Event-ID": str(cursor)})
        assert [json.loads(e.data) for e in by_id] == whole[cursor + 1 :]


@pytest.mark.parametrize(
    "text",
    [
        "a\rb",
        "a\r\nb",
        "a\n\nb",
        "event: completed\n\n",
        "id: 999\n",
        " lead",
        "\u2028x\u0085y\u2029",
        "\x00",
        "x" * 9000,
    ],
)
def test_text_cannot_forge_an_event(shared: Sidecar, text: str) -> None:
    """Parsed back it is the text that the crew wrote."""
    action = shared.begin("streaming", {"chunks": 2, "text": text})
    shared.ended(action)
    events = read(shared, f"/jobs/{action}/events")
    assert {event.event for event in events} == {"started", "chunk", "completed"}
    chunks = "".join(json.loads(event.data)["data"]["content"] for event in events if event.event == "chunk")
    assert chunks == text * 2
    with stream(shared, f"/jobs/{action}/events") as response:
        raw = response.read()
    assert raw.isascii()
    assert b"\r" not in raw


def test_output_that_is_not_strict_json_is_made_so_and_marked(shared: Sidecar) -> None:
    """The effect happened: the stream must not break after it (W28)."""
    response = shared.submit("odd", action_id="act_odd")
    assert response.status_code == 200
    assert "NaN" not in response.text
    output = json.loads(response.content.decode("utf-8"), parse_constant=pytest.fail)
    assert output["raw"] == "lone \ufffd end"
    assert output["sanitized"] is True
    assert json.loads(read(shared, "/jobs/act_odd/events")[-1].data)["data"] == output


def test_an_output_larger_than_a_frame_is_whole_in_the_record_and_cut_in_the_stream(shared: Sidecar) -> None:
    """Over 4 MiB it is cut in the record as well; the Action is completed all the same (W5)."""
    shared.submit("large", {"mark": "large", "bytes": 3_000_000}, action_id="act_large")
    assert shared.record("act_large")["output"]["raw"] == "x" * 3_000_000
    with stream(shared, "/jobs/act_large/events") as response:
        frames = response.read().split(b"\n\n")
    assert max(map(len, frames)) <= 1_048_576
    assert json.loads(frames[-2].split(b"data: ")[1])["data"]["output_truncated"] is True
    assert shared.submit("large", {"mark": "huge", "bytes": 6_000_000}, action_id="act_huge").status_code == 200
    record = shared.record("act_huge")
    assert record["status"] == "completed"
    assert record["output_truncated"] is True
    assert record["output_bytes"] > 6_000_000
    assert 4_000_000 < len(record["output"]["raw"]) < 4_194_304


def test_the_event_bound_drops_and_counts_but_never_fails_a_run(make_sidecar: Callable[..., Sidecar]) -> None:
    """Nor does any event that was written make the next start refuse (W3)."""
    sidecar = make_sidecar(max_events_per_run="5", max_event_bytes="1024").start()
    action = sidecar.begin("streaming", {"chunks": 30, "pause": 0.01, "text": "y" * 900})
    record = sidecar.ended(action)
    assert record["status"] == "completed"
    assert record["event_count"] == 5
    assert record["events_dropped"] > 0
    shown = sidecar.events(action)
    assert [event["sequence"] for event in shown] == [0, 1, 2, 3, 4]
    sidecar.restart()
    assert sidecar.events(action) == shown


def test_two_hundred_dropped_readers_leave_nothing_behind(shared: Sidecar) -> None:
    """Before the first byte, after one event, and the run goes on."""
    action = shared.begin("crew", {"mark": "watched", "seconds": 4})
    shared.wait_for_effect("watched")
    host, _, port = shared.url.removeprefix("http://").partition(":")
    request = (
        f"GET /jobs/{action}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    ).encode()

    def readers() -> float:
        text = httpx.get(shared.management_url + "/metrics").text
        found = re.search(r"^crewai_sidecar_event_readers(?:\{\})? (\S+)", text, re.MULTILINE)
        assert found, text
        return float(found.group(1))

    connections = []
    for _ in range(200):
        connection = socket.create_connection((host, int(port)))
        connection.sendall(request)
        connections.append(connection)
    until(lambda: readers() == 200, 10, "200 readers")
    for number, connection in enumerate(connections):
        if number % 2:
            connection.recv(4096)
        connection.close()
    until(lambda: readers() == 0, 10, "no reader left")
    assert shared.record(action)["status"] == "running"
    assert shared.ended(action)["status"] == "completed"


def test_two_runs_at_the_same_time_never_see_each_other(shared: Sidecar) -> None:
    """A process of its own for each."""
    found: dict[str, str] = {}

    def one(name: str) -> None:
        action = shared.begin("streaming", {"chunks": 10, "pause": 0.01, "text": f"<{name}>"})
        shared.ended(action)
        found[name] = json.dumps([shared.events(action), shared.record(action)])

    threads = [threading.Thread(target=one, args=(f"marker-{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for name, text in found.items():
        assert set(re.findall(r"marker-\d", text)) == {name}


def test_a_flood_of_output_ends_nothing(shared: Sidecar) -> None:
    """It is read, counted and dropped; one line a run says how much there was."""
    response = shared.submit("noisy", {"megabytes": 64}, action_id="act_noisy", timeout_ms=20_000)
    assert response.status_code == 200
    until(lambda: "act_noisy" in shared.errors() or "output" in shared.errors(), 5, "the line in the log")
    assert "xxxx" not in shared.errors()
    assert len(shared.errors()) < 1_000_000
