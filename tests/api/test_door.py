"""The token comes first; what is at no path or of no method; what is counted."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

from tests.api.service import BEARER, Service, client_of, in_a_service

PATHS = ["/health", "/jobs", "/jobs/act_1", "/jobs/act_1/events", "/openapi.json", "/nowhere", "/", "/drain", "/runs"]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"the-token"],
        [b"Bearer"],
        [b"Bearer "],
        [b"bearer the-token"],
        [b"Bearer the-tokem"],
        [b"Bearer the-token2"],
        [b"Bearer  the-token"],
        [b"Basic the-token"],
        ["Bearer the-tökén".encode()],
        [b"Bearer \xff\xfe"],
        [b"Bearer the-token", b"Bearer the-token"],
    ],
)
@in_a_service()
async def test_a_token_that_is_missing_or_wrong_is_401(service: Service, values: list[bytes]) -> None:
    """On every path, those that do not exist among them; the value must be the whole of `Bearer ` and the token."""
    async with client_of(service.app) as client:
        for path in PATHS:
            for method in ("GET", "POST"):
                headers = [(b"authorization", value) for value in values]
                response = await client.request(method, path, headers=headers)
                assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
                assert response.headers["www-authenticate"] == "Bearer"
                assert response.headers["content-type"] == "application/problem+json"


@in_a_service()
async def test_a_token_that_is_not_ascii_is_401(service: Service) -> None:
    """Compared as bytes, so nothing can raise (W25)."""
    async with client_of(service.app) as client:
        for value in (b"Bearer \xe9", "Bearer é".encode(), "Bearer \U0001f511".encode()):
            response = await client.get("/health", headers={b"authorization": value})
            assert response.status_code == 401


@in_a_service()
async def test_a_wrong_token_is_answered_before_the_body_is_read(service: Service) -> None:
    """Over a real connection, while the body has not even been sent (W24)."""
    async with service.listening() as (_, port):
        stream, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 30000000\r\n\r\n"
        )
        assert (await asyncio.wait_for(stream.readline(), 5)).startswith(b"HTTP/1.1 401")
        writer.close()


@in_a_service(bearer_token=None, allow_unauthenticated=True, host="127.0.0.1")
async def test_without_a_token_everybody_may_come_in(service: Service) -> None:
    """The loopback development mode."""
    async with client_of(service.app) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/health", headers={"Authorization": "Bearer whatever"})).status_code == 200


@pytest.mark.parametrize(
    "path", ["/nowhere", "/", "/jobs/a/b", "/jobs/a/events/b", "/schema", "/docs", "/runs/a/events"]
)
@in_a_service()
async def test_a_path_that_is_no_route_is_404(service: Service, path: str) -> None:
    """No pages, no schema but the one."""
    response = await service.get(path)
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/jobs", {"GET", "POST"}),
        ("GET", "/runs", {"POST"}),
        ("PATCH", "/jobs/act_1", {"GET", "DELETE"}),
        ("GET", "/jobs/act_1/cancel", {"POST"}),
        ("DELETE", "/runs/act_1", {"GET"}),
        ("HEAD", "/health", {"GET"}),
        ("BREW", "/health", {"GET"}),
        ("OPTIONS", "/jobs", {"GET", "POST"}),
        ("OPTIONS", "/jobs/act_1", {"GET", "DELETE"}),
    ],
)
@in_a_service()
async def test_a_method_that_a_path_has_not_is_405_with_those_that_it_has(
    service: Service, method: str, path: str, allowed: set[str]
) -> None:
    """In the Allow header."""
    response = await service.client.request(method, path)
    assert response.status_code == 405
    assert method == "HEAD" or response.json()["code"] == "method_not_allowed"
    assert set(response.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize("path", ["/jobs/%FF", "/jobs/a%c3/events", "/%ed%a0%80"])
@in_a_service()
async def test_a_path_that_is_not_utf_8_is_404(service: Service, path: str) -> None:
    """It must not be read as the path of the id that has a replacement character there."""
    await service.begin("\ufffd")
    response = await service.get(path)
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    async with client_of(service.app) as stranger:
        assert (await stranger.get(path)).status_code == 401
    assert (await service.get("/jobs/%EF%BF%BD")).status_code == 200


@in_a_service()
async def test_no_request_makes_a_new_series(service: Service) -> None:
    """Ids, scanner paths, invented methods, crews and operations are no label values."""
    for path in ("/jobs/x", "/jobs/x/events", "/x"):
        await service.get(path)
    await service.client.request("BREW", "/x")
    await service.start("act_0", crew_id="nobody")
    before = service.metrics.text().count(b"\n")
    for _ in range(50):
        name = secrets.token_hex(4)
        for path in (f"/jobs/{name}", f"/jobs/{name}/events", f"/{name}"):
            await service.get(path)
        await service.client.request(name.upper(), f"/{name}")
        await service.start(name, crew_id=name)
    assert service.metrics.text().count(b"\n") == before
    assert service.number("http_answers_total", route="/jobs/{action_id}", method="GET", code="404") == 51
    assert service.number("http_answers_total", route="unmatched", method="GET", code="404") == 51
    assert service.number("http_answers_total", route="unmatched", method="other", code="404") == 51
    assert service.number("admissions_total", operation="run", outcome="crew_unknown") == 51


@in_a_service()
async def test_every_answer_is_counted_with_its_route_and_code(service: Service) -> None:
    """409, 504, 507 and 401 among them."""
    await service.start(timeout_ms=1)
    await service.start(value={"x": 1})
    async with client_of(service.app) as stranger:
        await stranger.get("/jobs/act_1")
    assert service.number("http_answers_total", route="/jobs", method="POST", code="504") == 1
    assert service.number("http_answers_total", route="/jobs", method="POST", code="409") == 1
    assert service.number("http_answers_total", route="unmatched", method="GET", code="401") == 1
    assert service.number("admissions_total", operation="run", outcome="request_conflict") == 1


@pytest.mark.parametrize("host", [b"", b"a b", b"\xff", b"x" * 5000])
@in_a_service()
async def test_a_host_header_that_is_none_is_never_500(service: Service, host: bytes) -> None:
    """Nothing here depends on it."""
    response = await service.get("/health", headers={b"host": host})
    assert response.status_code in {200, 422}


@in_a_service()
async def test_a_websocket_is_refused(service: Service) -> None:
    """There is nothing to speak about."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    headers = [(name.lower().encode(), value.encode()) for name, value in BEARER.items()]
    await service.app({"type": "websocket", "path": "/jobs", "headers": headers}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
