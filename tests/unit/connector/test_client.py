"""The client against a double of the service on a real socket: what it sends and what it makes of answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from crewai_sidecar.connector import (
    Action,
    BrokenContract,
    Patience,
    Refused,
    Sidecar,
    Unreachable,
    token_from_file,
)
from tests.doubles.fake_service import FakeService

ACTION = Action(crew_id="demo", action_id="act_1", idempotency_key="schlüssel-1", input={"topic": "ä", "n": 1.0})


@pytest.fixture
def sidecar(service: FakeService) -> Iterator[Sidecar]:
    with Sidecar(service.url, token="secret", patience=Patience(attempts=3), pause=lambda _: None) as made:
        yield made


def test_a_start_sends_the_action_as_it_is(service: FakeService, sidecar: Sidecar) -> None:
    """The six hashed fields go out unchanged, the key as UTF-8, an absent timeout as absent."""
    assert sidecar.submit(ACTION)["raw"] == "the output"
    method, path, headers, body = service.requests[0]
    assert (method, path) == ("POST", "/jobs")
    assert body == {"crew_id": "demo", "action_id": "act_1", "operation": "run", "input": {"topic": "ä", "n": 1.0}}
    assert headers["authorization"] == "Bearer secret"
    assert headers["idempotency-key"].encode("latin-1").decode("utf-8") == "schlüssel-1"
    assert headers["x-aip-action-id"] == "act_1"


def test_a_timeout_is_sent_where_there_is_one(service: FakeService, sidecar: Sidecar) -> None:
    """A timeout is part of who the request is."""
    sidecar.submit(Action(crew_id="demo", action_id="act_1", idempotency_key="k", timeout_ms=600_000))
    assert service.requests[0][3]["timeout_ms"] == 600_000


def test_an_async_start_returns_where_to_look(service: FakeService, sidecar: Sidecar) -> None:
    """202 and Location, asked for with Prefer."""
    accepted = sidecar.submit_async(ACTION)
    assert accepted.location == "/jobs/act_1"
    assert service.requests[0][2]["prefer"] == "respond-async"


def test_a_stream_gives_out_every_event_to_the_ending(sidecar: Sidecar) -> None:
    """Events come in order, from 0, and the ending is the last."""
    events = list(sidecar.stream(ACTION))
    assert [event.sequence for event in events] == [0, 1, 2, 3]
    assert events[-1].event == "completed"
    assert events[-1].terminal


def test_a_stream_that_breaks_off_is_not_sent_again(service: FakeService, sidecar: Sidecar) -> None:
    """What came is given out, then the loss is raised; a second start is never sent by the client itself."""
    service.cuts = [2]
    came: list[int] = []
    with pytest.raises(Unreachable) as lost:
        came.extend(event.sequence for event in sidecar.stream(ACTION))
    assert lost.value.may_have_arrived
    assert len(service.requests) == 1


def test_following_outlives_lost_connections(service: FakeService, sidecar: Sidecar) -> None:
    """Each event comes exactly once and in order, whatever the number of connections."""
    sidecar.submit_async(ACTION)
    service.cuts = [1, 0, 2]
    assert [event.sequence for event in sidecar.follow("act_1")] == [0, 1, 2, 3]
    assert [path for _, path, _, _ in service.requests[1:]] == [
        "/jobs/act_1/events?cursor=0",
        "/jobs/act_1/events?cursor=1",
        "/jobs/act_1/events?cursor=1",
        "/jobs/act_1/events?cursor=3",
    ]


def test_following_waits_for_a_service_that_starts_again(service: FakeService, sidecar: Sidecar) -> None:
    """503 while a service goes down or comes up is a reason to come back, a 404 is not."""
    sidecar.submit_async(ACTION)
    service.refusals = [(503, {"code": "draining", "detail": "going down"})] * 2
    assert len(list(sidecar.follow("act_1"))) == 4
    with pytest.raises(Refused, match="action_unknown"):
        list(sidecar.follow("act_2"))


def test_following_gives_up_after_its_patience(service: FakeService) -> None:
    """Attempts in a row without a new event are bounded; the pauses between them grow to a bound."""
    pauses: list[float] = []
    patience = Patience(attempts=4, first_pause=1.0, longest_pause=3.0)
    with Sidecar(service.url, patience=patience, pause=pauses.append) as sidecar:
        sidecar.submit_async(ACTION)
        service.cuts = [0] * 10
        with pytest.raises(Unreachable):
            list(sidecar.follow("act_1"))
    assert pauses == [1.0, 2.0, 3.0, 3.0]


def test_following_from_behind_the_ending_ends(service: FakeService, sidecar: Sidecar) -> None:
    """A cursor behind the last event of an ended record is no lost stream."""
    sidecar.submit_async(ACTION)
    assert list(sidecar.follow("act_1", 4)) == []


def test_a_gap_in_the_events_is_a_broken_contract(service: FakeService, sidecar: Sidecar) -> None:
    """A client that missed an event says so instead of going on without it."""
    sidecar.submit_async(ACTION)
    del service.records["act_1"]["events"][1]
    with pytest.raises(BrokenContract, match="event 1 was to come and 2 came"):
        list(sidecar.follow("act_1"))


def test_pages_and_views_are_typed_and_keep_what_they_do_not_know(service: FakeService, sidecar: Sidecar) -> None:
    """A newer service's fields are in `answer`."""
    sidecar.submit_async(ACTION)
    service.records["act_1"]["view"]["new_field"] = "x"
    view = sidecar.status("act_1")
    assert (view.status, view.event_count, view.ended) == ("completed", 4, True)
    assert view.answer["new_field"] == "x"
    page = sidecar.events("act_1", 2)
    assert [event.event for event in page.events] == ["chunk", "completed"]
    assert page.next_cursor == 4


def test_the_list_is_read_page_by_page(service: FakeService, sidecar: Sidecar) -> None:
    """`next` of a page is `after` of the next; filters that are not given are not sent."""
    for number in range(3):
        sidecar.submit_async(Action(crew_id="demo", action_id=f"act_{number}", idempotency_key="k"))
    page = sidecar.list_jobs(limit=2)
    assert [view.action_id for view in page.jobs] == ["act_0", "act_1"]
    rest = sidecar.list_jobs(limit=2, after=page.next, to_be_reconciled=True)
    assert [view.action_id for view in rest.jobs] == ["act_2"]
    assert rest.next is None
    assert service.requests[-1][1] == "/jobs?to_be_reconciled=true&limit=2&after=act_1"


def test_an_action_id_cannot_leave_its_place_in_the_path(service: FakeService, sidecar: Sidecar) -> None:
    """An id is one path segment, whatever its characters."""
    with pytest.raises(Refused):
        sidecar.status("../drain?x#y ä")
    assert service.requests[0][1] == "/jobs/..%2Fdrain%3Fx%23y%20%C3%A4"


def test_cancel_archive_and_drain_say_what_the_contract_asks(service: FakeService, sidecar: Sidecar) -> None:
    """Path and body name the same Action; the archive is confirmed by the id."""
    sidecar.submit_async(ACTION)
    sidecar.cancel("act_1", "demo", reason="wrong order")
    sidecar.archive("act_1")
    sidecar.drain()
    cancel, archive, drain = service.requests[1:]
    assert cancel[:2] == ("POST", "/jobs/act_1/cancel")
    assert cancel[3] == {"crew_id": "demo", "action_id": "act_1", "reason": "wrong order"}
    assert archive[:2] == ("DELETE", "/jobs/act_1")
    assert archive[2]["x-aip-archive-confirmation"] == "act_1"
    assert drain[:2] == ("POST", "/drain")


def test_health_is_read_while_the_service_goes_down(service: FakeService, sidecar: Sidecar) -> None:
    """A draining service still says how it is; without a journal it is not ready for a connector."""
    assert sidecar.health().ready
    service.health = (503, {**service.health[1], "status": "draining"})
    assert sidecar.health().status == "draining"
    service.health = (200, {**service.health[1], "status": "ready", "durable_journal": False})
    assert not sidecar.health().ready


def test_a_problem_becomes_status_code_and_detail(service: FakeService, sidecar: Sidecar) -> None:
    """RFC 9457's members are fields of the error, and Retry-After is a number."""
    service.refusals = [(409, {"status": 409, "code": "request_conflict", "detail": "Another request.", "hint": 1})]
    with pytest.raises(Refused) as refused:
        sidecar.submit(ACTION)
    assert (refused.value.status, refused.value.code, refused.value.detail) == (
        409,
        "request_conflict",
        "Another request.",
    )
    assert refused.value.problem["hint"] == 1


def test_a_refusal_is_never_tried_again(service: FakeService, sidecar: Sidecar) -> None:
    """A mutation is sent once, also where the service says that it is busy."""
    service.refusals = [(503, {"code": "queue_full", "detail": "full"})] * 5
    for send in (lambda: sidecar.submit(ACTION), lambda: sidecar.cancel("act_1", "demo"), sidecar.drain):
        before = len(service.requests)
        with pytest.raises(Refused):
            send()
        assert len(service.requests) == before + 1


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff", b"[" * 100_000], ids=["html", "array", "bytes", "deep"])
def test_an_answer_that_is_no_object_is_a_broken_contract(body: bytes) -> None:
    """What answers there is not a sidecar."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    with Sidecar("http://127.0.0.1:1", transport=transport) as sidecar, pytest.raises(BrokenContract):
        sidecar.status("act_1")


def test_a_redirect_is_not_followed() -> None:
    """The token goes to the address that was given and nowhere else."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(307, headers={"Location": "http://127.0.0.1:2/elsewhere"})

    with Sidecar("http://127.0.0.1:1", transport=httpx.MockTransport(answer)) as sidecar, pytest.raises(Refused):
        sidecar.health()
    assert len(asked) == 1


def test_nobody_there_is_unreachable_and_nothing_arrived() -> None:
    """A port without a listener proves that the request was not read."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with Sidecar(f"http://127.0.0.1:{port}") as sidecar, pytest.raises(Unreachable) as lost:
            sidecar.submit(ACTION)
    assert not lost.value.may_have_arrived


@pytest.mark.parametrize("lost_when", ["before", "after"])
def test_a_lost_answer_may_have_arrived(service: FakeService, sidecar: Sidecar, lost_when: str) -> None:
    """From outside, a start lost before its admission looks as one lost after it."""
    service.lose_start = lost_when
    with pytest.raises(Unreachable) as lost:
        sidecar.submit(ACTION)
    assert lost.value.may_have_arrived
    assert ("act_1" in service.records) is (lost_when == "after")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.test:8090",
        "ftp://127.0.0.1",
        "127.0.0.1:8090",
        "http://127.0.0.1/path",
        "http://user@127.0.0.1",
        "http://127.0.0.1/?a=b",
        "",
    ],
)
def test_an_address_that_a_token_must_not_go_to_is_refused(url: str) -> None:
    """Plain http leaves this host for nobody, and an origin is all that a base URL may be."""
    with pytest.raises(ValueError, match=r"address|origin|clear"):
        Sidecar(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://LOCALHOST:1/", "http://[::1]:1", "https://example.test"])
def test_loopback_and_https_are_addresses(url: str) -> None:
    """The three forms of this host, and any host over TLS."""
    Sidecar(url).close()


class Body(httpx.SyncByteStream):
    """A body with one event and no end, which knows whether its connection was closed."""

    def __init__(self) -> None:
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield b'data: {"event": "started", "sequence": 0, "data": {}}\n\n'
        raise AssertionError("nobody asked for a second piece")

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("leave", ["stream", "follow"])
def test_a_stream_that_is_left_early_closes_its_connection(leave: str) -> None:
    """At once, and not when the garbage collector comes by."""
    body = Body()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=body))
    with Sidecar("http://127.0.0.1:1", transport=transport) as sidecar:
        events = sidecar.stream(ACTION) if leave == "stream" else sidecar.follow(ACTION.action_id)
        assert next(events).event == "started"
        assert not body.closed
        events.close()
        assert body.closed


def test_the_tokens_file_is_read_before_each_request(service: FakeService, tmp_path: Path) -> None:
    """A rotated token needs no restart of its user."""
    file = tmp_path / "token"
    file.write_text("first\n")
    with Sidecar(service.url, token=token_from_file(file)) as sidecar:
        sidecar.health()
        file.write_text("second\n")
        sidecar.health()
    assert [headers["authorization"] for _, _, headers, _ in service.requests] == ["Bearer first", "Bearer second"]


def test_a_tokens_file_that_has_become_empty_is_not_sent(service: FakeService, tmp_path: Path) -> None:
    """An empty token is no token: the caller learns of the file, not of a refusal."""
    file = tmp_path / "token"
    file.write_text("\n")
    with Sidecar(service.url, token=token_from_file(file)) as sidecar, pytest.raises(OSError, match=str(file)):
        sidecar.health()
    assert service.requests == []


def test_a_proxy_of_the_environment_does_not_see_this_host(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to loopback stays on loopback."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with Sidecar(service.url) as sidecar:
        assert sidecar.health().ready
