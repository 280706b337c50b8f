"""Listeners: sockets, and what a connection may take before anybody has shown a token.

Whoever reaches a port can open connections and send bytes. So a listener has a number of connections, a request has a
time and a number of bytes in which its head must be there, and both are counted by the bytes that came, not by the
parser's own callbacks, which see a header only when it is whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from crewai_sidecar.api.problems import HeadersTooLarge, MalformedRequest, problem
from crewai_sidecar.errors import SettingRefused, SidecarError, StartRefused
from crewai_sidecar.settings import PREFIX

__all__ = ["CLOSE_SECONDS", "Limits", "Listener", "bind", "contract_limits", "management_limits"]

CLOSE_SECONDS = 2
"""Time that open responses have to end when a listener closes."""

MAX_HEAD_BYTES = 64 << 10
"""Bytes that may come without a head, a part of a body or a message becoming whole."""

MAX_PIPELINED = 16
"""Requests that may wait on a connection for the answer to the one before."""

LINGER_SECONDS = 2.0
"""Time for a refusal to be read. What still comes is thrown away: closing at once would take the answer along."""

_PIECE = 16 << 10
"""Bytes that the parser gets at a time, so that a count is never far behind."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the connections of one listener may take."""

    connections: int
    head_seconds: float = 10.0


def contract_limits() -> Limits:
    """Limits of the contract port: a quarter of the descriptors at most, so that the journal and runs have theirs."""
    return Limits(connections=max(8, min(4096, _descriptors() // 4)))


def management_limits() -> Limits:
    """Limits of the management port, where only probes and a scraper come."""
    return Limits(connections=max(8, min(128, _descriptors() // 8)))


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def bind(host: str, port: int, variable: str) -> socket.socket:
    """Bind a listening socket; `::` takes IPv4 as well, and falls back to it where the kernel has no IPv6.

    Raises SettingRefused with the address and the reason.
    """
    try:
        return _listening(host, port)
    except socket.gaierror as error:
        name = PREFIX + variable.replace("PORT", "HOST")
        raise SettingRefused(name, f"{host!r} is not an address here: {error.strerror}") from None
    except OSError as error:
        if host == "::" and not socket.has_dualstack_ipv6():
            return bind("0.0.0.0", port, variable)  # noqa: S104  # the documented default: every address
        raise SettingRefused(
            PREFIX + variable, f"{host} port {port} cannot be bound: {error.strerror or error}"
        ) from None


def _listening(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


class Listener:
    """One uvicorn server on a socket of ours.

    uvicorn's own signal handling and lifespan are off: it would close on the first SIGTERM, while running Actions
    still have readers, and raise the signal again at the end. `refused` is called for each connection over the limit.
    """

    def __init__(
        self, app: Any, listener: socket.socket, name: str, limits: Limits, refused: Callable[[], None]
    ) -> None:
        self._socket = listener
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                http=_protocol(limits, refused),
                ws="none",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=CLOSE_SECONDS,
                timeout_keep_alive=75,
            )
        )
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def up(self) -> None:
        """Serve, and return when the first connection would be answered."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name=f"{self._name} listener")
        while not self._server.started:
            if self._task.done():
                await self._task
                raise StartRefused(f"The {self._name} listener ended while it started.")
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        """Refuse new connections, let open responses end for a while, and return."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS + 1)
        self._socket.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone: they belong to the service."""
        yield


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol of one connection, with bounds on what comes before a request is there."""

    limits: Limits
    refused: Callable[[], None]

    _reading_head = True
    _incomplete = 0  # bytes since anything of the request became whole
    _deadline: asyncio.TimerHandle | None = None
    _over = False  # the connection got its refusal; nothing is read from it any more

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        if len(self.connections) >= self.limits.connections:
            self.transport = transport
            self._over = True
            self.refused()
            transport.abort()
            return
        super().connection_made(transport)
        self._arm(self.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser piece by piece, and see after each whether the bounds are kept."""
        self._unset_keepalive_if_required()
        for begin in range(0, len(data), _PIECE):
            if self._over or self.transport.is_closing():
                return
            piece = data[begin : begin + _PIECE]
            self._incomplete += len(piece)
            try:
                self._feed(piece)
            except httptools.HttpParserError as error:
                _log.debug("a request could not be parsed", extra={"reason": str(error)})
                self._refuse(MalformedRequest("The request is not valid HTTP/1.1."))
                return
            if self._incomplete > MAX_HEAD_BYTES:
                self._refuse(HeadersTooLarge(f"The request line and headers have more than {MAX_HEAD_BYTES:,} bytes."))
                return
        if self._deadline is None and self._answered():
            self._arm(self.limits.head_seconds)

    def _feed(self, piece: bytes) -> None:
        """Parse; what follows on a wish to change the protocol, which is not granted, is HTTP again."""
        while piece:
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                piece = piece[upgrade.args[0] :]
            else:
                return

    # -- what the parser reports ----------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._reading_head = False
        self._incomplete = 0
        self._disarm()
        if len(self.pipeline) > MAX_PIPELINED:
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._incomplete = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._reading_head = True
        self._incomplete = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._answered() and not self._reading_head and not self.transport.is_closing():
            self._arm(self.limits.head_seconds)  # the rest of a body that nobody reads

    # -- inside ---------------------------------------------------------------------------------------------------

    def _answered(self) -> bool:
        """Whether every request that came so far has its whole answer."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, error: SidecarError) -> None:
        """Answer what is no request, where nothing else was begun to be answered, and end the connection."""
        self._over = True
        fresh = self._answered() and self._reading_head
        if not fresh and (self.pipeline or self.cycle.response_started):
            self.transport.abort()
            return
        if not fresh:  # the fault is in the body of a request whose handler waits for it
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        answer = problem(error, headers={"Connection": "close"})
        head = [STATUS_LINE[answer.status_code]]
        for name, value in (*self.server_state.default_headers, *answer.encode_headers()):
            head += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*head, b"\r\n", answer.body]))
        self.transport.write_eof()
        self._arm(LINGER_SECONDS)


def _protocol(limits: Limits, refused: Callable[[], None]) -> type[BoundedProtocol]:
    """Make the protocol of one listener; uvicorn makes an object of it for each connection."""
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "refused": staticmethod(refused)})
