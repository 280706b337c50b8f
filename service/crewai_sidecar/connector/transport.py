"""One HTTP exchange with the sidecar: address, token, bounds, and every foreign failure turned into this package's.

Nothing here knows a route.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import httpx

from crewai_sidecar import jsontext
from crewai_sidecar.addresses import is_loopback
from crewai_sidecar.connector.errors import BrokenContract, Refused, from_httpx

__all__ = ["MAX_ANSWER_BYTES", "TokenSource", "Transport", "read_json"]

READ_SECONDS = 30.0
"""Silence after which an answer that is not waited for is given up."""

MAX_ANSWER_BYTES = 64 << 20
"""Bytes of one JSON answer."""

CONNECT_SECONDS = 10.0

TokenSource = Callable[[], str]


class Transport:
    """Sends requests to one origin. `token` is asked before each request, so that a rotated file is read again.

    Raises ValueError for an address with a path, a user or a query, and for plain http to another host than this one:
    the token would travel in the clear.
    """

    def __init__(
        self, base_url: str, token: TokenSource | None, transport: httpx.BaseTransport | None, verify: Any
    ) -> None:
        url = _origin(base_url)
        self.origin = str(url).rstrip("/")
        self._token = token
        # What is on this host is never reached through a proxy of the environment.
        self._client = httpx.Client(
            base_url=url, transport=transport, verify=verify, trust_env=not is_loopback(url.host)
        )

    def close(self) -> None:
        self._client.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        query: dict[str, Any] | None = None,
        read_seconds: float = READ_SECONDS,
    ) -> tuple[httpx.Response, dict[str, Any]]:
        """Exchange JSON for a JSON object.

        Raises Refused, Unreachable and BrokenContract, and ValueError or TypeError for a body that JSON has no form
        for.
        """
        with self.open(method, path, body=body, headers=headers, query=query, read_seconds=read_seconds) as response:
            with self._mapped():
                text = _bounded(response)
            value = _object(text)
            if value is None:
                raise BrokenContract(f"{self.origin}{path} answered {response.status_code} without a JSON object")
            return response, value

    @contextlib.contextmanager
    def open(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        query: dict[str, Any] | None = None,
        read_seconds: float,
    ) -> Iterator[httpx.Response]:
        """Send a request and give out the answer while its body is still on the way.

        Raises what `call` raises, for what happens before the body; use `pieces` for the body itself.
        """
        request = self._request(method, path, body, headers or {}, query or {}, read_seconds)
        with self._mapped():
            response = self._client.send(request, stream=True)
        try:
            if not response.is_success:
                with self._mapped():
                    text = _bounded(response)
                raise _refused(response, text)
            yield response
        finally:
            response.close()

    def pieces(self, response: httpx.Response) -> Generator[bytes, None, None]:
        """Give out the body as it arrives.

        Raises Unreachable where it breaks off.
        """
        # httpx promises an iterator only and gives a generator, which would else be ended by the garbage collector.
        with contextlib.closing(cast("Generator[bytes, None, None]", response.iter_bytes())) as stream:
            while True:
                with self._mapped():
                    piece = next(stream, None)
                if piece is None:
                    return
                yield piece

    def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        headers: dict[str, str],
        query: dict[str, Any],
        read_seconds: float,
    ) -> httpx.Request:
        raw = [(name.encode("ascii"), value.encode("utf-8")) for name, value in headers.items()]
        if self._token is not None:
            raw.append((b"Authorization", b"Bearer " + self._token().encode("utf-8")))
        if body is not None:
            raw.append((b"Content-Type", b"application/json"))
        return self._client.build_request(
            method,
            path,
            content=None if body is None else jsontext.encode(body),
            headers=raw,
            params={name: _query_text(value) for name, value in query.items() if value is not None},
            timeout=httpx.Timeout(read_seconds, connect=CONNECT_SECONDS),
        )

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise from_httpx(error, self.origin) from error


def _origin(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ValueError(f"{text!r} is not an address: {error}") from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(f"{text!r} is not an address such as http://127.0.0.1:8090")
    if url.path not in {"", "/"} or url.query or url.fragment or url.userinfo:
        raise ValueError(f"{text!r} must be an origin: no path, query, fragment or user")
    if url.scheme == "http" and not is_loopback(url.host):
        raise ValueError(f"{text!r} would send the token in the clear: use https, or an address of this host")
    return url


def _query_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bounded(response: httpx.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    for piece in response.iter_bytes():
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise BrokenContract(f"{response.url} sends more than {MAX_ANSWER_BYTES:,} bytes")
        parts.append(piece)
    return b"".join(parts)


def read_json(text: str | bytes) -> Any:
    """Read an answer. It is read more liberally than a request: what a crew put out may be nested deep.

    Raises ValueError for what is not JSON.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the text is nested too deep") from None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _refused(response: httpx.Response, text: bytes) -> Refused:
    problem = _object(text) or {}
    code, detail = problem.get("code"), problem.get("detail")
    retry_after = response.headers.get("retry-after", "")
    return Refused(
        response.status_code,
        code if isinstance(code, str) else None,
        detail if isinstance(detail, str) else response.reason_phrase or "no reason was given",
        problem,
        float(retry_after) if retry_after.isdecimal() else None,
    )
