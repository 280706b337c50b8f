"""What a connection may take before a request is there, and what it is told when it takes more."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from crewai_sidecar.listeners import MAX_HEAD_BYTES, MAX_PIPELINED, Limits
from tests.api.service import TOKEN, Service, in_a_service, until

HEALTH = f"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
STREAM = HEALTH.replace(b"/health", b"/jobs/act_1/events")[:-2] + b"Accept: text/event-stream\r\n\r\n"
SOON = Limits(connections=100, head_seconds=0.1)


class Wire:
    """A connection that is spoken to in bytes."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Wire:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """The next answer, with its JSON."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)).decode("latin-1")
        status, *lines = head.strip().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self.reader.readexactly(int(fields.get("content-length", "0")))
        return int(status.split()[1]), fields, json.loads(body) if body else None

    async def rest(self) -> bytes:
        """What comes until the service has closed the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), 5)
        except ConnectionError:
            return b""


def head_of(size: int) -> bytes:
    return HEALTH[:-2] + b"X: " + b"a" * (size - len(HEALTH) - 5) + b"\r\n\r\n"


ENDLESS = {
    "path": b"GET /" + b"a" * 80_000,
    "header": b"GET / HTTP/1.1\r\nX: " + b"a" * 80_000,
    "headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 14_000,
}


@pytest.mark.parametrize("kind", ENDLESS)
@in_a_service()
async def test_a_head_without_an_end_is_431_and_the_connection_is_closed(service: Service, kind: str) -> None:
    """Nobody needs a token to send one."""
    async with service.listening() as (_, port), Wire(port) as wire:
        wire.send(ENDLESS[kind])
        status, fields, body = await wire.answer()
        assert (status, body["code"], fields["content-type"]) == (431, "headers_too_large", "application/problem+json")
        assert fields["connection"] == "close"
        assert await wire.rest() == b""


@in_a_service()
async def test_a_head_within_the_bound_is_read_in_whatever_pieces_it_comes(service: Service) -> None:
    """Also as the second request of a connection, and behind a body that is larger than the bound."""
    large = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 300000\r\n\r\n"
    async with service.listening() as (_, port), Wire(port) as wire:
        head = head_of(MAX_HEAD_BYTES)
        assert len(head) == MAX_HEAD_BYTES
        for begin in range(0, len(head), 1000):
            wire.send(head[begin : begin + 1000])
            await wire.writer.drain()
        assert (await wire.answer())[0] == 200
        wire.send(large % TOKEN.encode() + b"x" * 300_000)
        assert (await wire.answer())[0] == 404
        wire.send(head)
        assert (await wire.answer())[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"\r\n", HEALTH + b"GET /hea", HEALTH + b"\r\n"])
@in_a_service()
async def test_a_connection_whose_head_does_not_come_is_closed(service: Service, sent: bytes) -> None:
    """The time begins with the connection, and again with what comes after an answer."""
    async with service.listening(SOON) as (_, port), Wire(port) as wire:
        if sent.startswith(HEALTH):
            wire.send(HEALTH)
            assert (await wire.answer())[0] == 200
        wire.send(sent.removeprefix(HEALTH))
        assert await wire.rest() == b""


@in_a_service()
async def test_bytes_that_come_one_by_one_do_not_make_the_time_longer(service: Service) -> None:
    """The connection is closed while they still come."""
    async with service.listening(SOON) as (_, port), Wire(port) as wire:
        wire.send(b"GET / HTTP/1.1\r\nX: ")

        async def drip() -> None:
            while not wire.writer.transport.is_closing():
                wire.send(b"a")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        assert await wire.rest() == b""
        dripping.cancel()


@in_a_service()
async def test_a_body_that_nobody_reads_has_its_time_too(service: Service) -> None:
    """After 401 the rest may come for a while, so that the answer is read; then the connection is closed."""
    async with service.listening(SOON) as (_, port), Wire(port) as wire:
        wire.send(b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 1000)
        assert (await wire.answer())[0] == 401
        assert await wire.rest() == b""


@in_a_service()
async def test_trailers_without_an_end_close_the_connection(service: Service) -> None:
    """They come behind an answer, and are bounded as a head is."""
    async with service.listening() as (_, port), Wire(port) as wire:
        wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        assert (await wire.answer())[0] == 401
        wire.send(b"0\r\nX: " + b"a" * 100_000)
        assert await wire.rest() == b""


@in_a_service()
async def test_a_quiet_stream_is_no_connection_without_a_request(service: Service) -> None:
    """It stays open past the time that a head has, and a keep-alive connection does too."""
    await service.begin()
    async with service.listening(SOON) as (_, port), Wire(port) as stream, Wire(port) as kept:
        stream.send(STREAM)
        await until(lambda: service.store.watch.readers == 1)
        kept.send(HEALTH)
        await kept.answer()
        async with Wire(port) as third:
            assert await third.rest() == b""  # a time has passed
        kept.send(HEALTH)
        assert (await kept.answer())[0] == 200
        await service.scheduler.complete("act_1", {})
        assert b"event: completed" in await stream.reader.readuntil(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "sent", [b"nonsense\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n", b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00",
             b"GET /\xff HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"],
)  # fmt: skip
@in_a_service()
async def test_what_is_no_http_is_400(service: Service, sent: bytes) -> None:
    """As a problem body, and the connection is closed."""
    async with service.listening() as (_, port), Wire(port) as wire:
        wire.send(sent)
        status, fields, body = await wire.answer()
        assert (status, body["code"], fields["content-type"]) == (400, "malformed_request", "application/problem+json")
        assert await wire.rest() == b""


@in_a_service()
async def test_a_body_that_is_no_http_is_400_and_its_handler_is_told(service: Service) -> None:
    """The request was admitted by its head and waits for its body."""
    async with service.listening() as (_, port), Wire(port) as wire:
        wire.send(
            HEALTH.replace(b"GET /health", b"POST /jobs").replace(
                b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
        )
        await asyncio.sleep(0)
        wire.send(b"zz\r\n")
        status, _, body = await wire.answer()
        assert (status, body["code"]) == (400, "malformed_request")
        await until(lambda: service.number("http_answers_total", route="/jobs", method="POST", code="499") == 1)


@in_a_service()
async def test_nonsense_behind_a_request_is_no_part_of_its_answer(service: Service) -> None:
    """A stream that has begun ends where it is."""
    await service.begin()
    await service.scheduler.start("act_1")
    async with service.listening() as (_, port), Wire(port) as wire:
        wire.send(STREAM)
        await until(lambda: service.store.watch.readers == 1)
        wire.send(b"nonsense\r\n\r\n")
        assert b"malformed" not in await wire.rest()
        await until(lambda: service.store.watch.readers == 0)


@in_a_service()
async def test_requests_that_wait_on_a_connection_are_answered_in_order_up_to_a_number(service: Service) -> None:
    """Each takes a thousand times the memory of its bytes."""
    async with service.listening() as (_, port):
        async with Wire(port) as wire:
            wire.send(HEALTH + HEALTH.replace(b"health", b"nowhere") + HEALTH)
            assert [(await wire.answer())[0] for _ in range(3)] == [200, 404, 200]
        async with Wire(port) as wire:
            wire.send(HEALTH * (MAX_PIPELINED + 10))
            assert (await wire.rest()).count(b"HTTP/1.1 200") <= MAX_PIPELINED


@in_a_service()
async def test_connections_over_the_number_are_closed_at_once_and_counted(service: Service) -> None:
    """Those that are there are served, and one that goes makes room."""
    async with service.listening(Limits(connections=2)) as (_, port), Wire(port) as first:
        first.send(HEALTH)
        await first.answer()
        async with Wire(port) as second:
            second.send(HEALTH)
            await second.answer()
            for number in range(3):
                async with Wire(port) as third:
                    assert await third.rest() == b""
                assert service.number("connections_refused_total", listener="contract") == number + 1
            first.send(HEALTH)
            assert (await first.answer())[0] == 200

        async def let_in() -> bool:
            async with Wire(port) as third:
                third.send(HEALTH)
                return b"200" in await asyncio.wait_for(third.reader.readline(), 5)

        async with asyncio.timeout(5):
            while not await let_in():
                pass


@pytest.mark.parametrize(
    ("path", "token", "code"), [("/jobs", False, 401), ("/nowhere", True, 404), ("/jobs", True, 200)]
)
@in_a_service()
async def test_a_wish_to_speak_another_protocol_is_not_heard(
    service: Service, path: str, token: bool, code: int
) -> None:
    """A websocket handshake gets what the request without it would, and so does the next request."""
    key = base64.b64encode(bytes(16)).decode()
    head = (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    ) + (f"Authorization: Bearer {TOKEN}\r\n" if token else "")
    async with service.listening() as (_, port), Wire(port) as wire:
        wire.send(head.encode() + b"\r\n" + HEALTH)
        assert (await wire.answer())[0] == code
        assert (await wire.answer())[0] == 200
