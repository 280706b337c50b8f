"""The door of the contract port: who may come in, what every answer is counted as, and what an error is answered with.

It stands around the whole application, so that no path, body or route is looked at before the token is.
"""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import unquote_to_bytes

from litestar import Response
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from crewai_sidecar.api.auth import Token
from crewai_sidecar.api.parts import AnyRequest
from crewai_sidecar.api.problems import PROBLEMS, Internal, MethodNotAllowed, NotFound, problem
from crewai_sidecar.api.wire import ClientGone
from crewai_sidecar.errors import InvalidFields, SidecarError, Unauthorized
from crewai_sidecar.telemetry.metrics import Metrics
from crewai_sidecar.telemetry.names import UNMATCHED

__all__ = ["CLIENT_GONE", "Door", "refuse"]

CLIENT_GONE = 499
"""The code, as nginx counts it, of an answer that nobody was there to get."""

_NO_METHOD = "NONE"

_log = logging.getLogger(__name__)


class Door:
    """An ASGI application around the contract's."""

    def __init__(self, app: ASGIApp, token: Token, metrics: Metrics) -> None:
        self._app = app
        self._token = token
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await send({"type": "websocket.close", "code": 1000, "reason": ""})
            return
        status, method = CLIENT_GONE, scope["method"]

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
            if not self._token.accepts(given):
                refusal = problem(Unauthorized("The request needs the header Authorization: Bearer and the token."))
                await refusal(scope, receive, counted)
            elif not _is_utf8(scope.get("raw_path") or b""):  # it would be read as the path of another id
                await problem(NotFound("There is nothing at this path."))(scope, receive, counted)
            else:
                if scope["method"] == "OPTIONS":  # no route has it; Litestar would answer for one handler of the path
                    scope = {**scope, "method": _NO_METHOD}  # type: ignore[typeddict-item]  # as any could come
                await self._app(scope, receive, counted)
        finally:
            self._metrics.answered(scope.get("path_template") or UNMATCHED, method, status)


def _is_utf8(raw_path: bytes) -> bool:
    try:
        unquote_to_bytes(raw_path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def refuse(request: AnyRequest, error: Exception) -> Response[None]:
    """Turn whatever a handler raised into its answer. What is no refusal is logged, and its text goes nowhere else."""
    return _Ready(_refusal(request, error))


class _Ready(Response[None]):
    """An answer that is written already, in the form that Litestar takes from an exception handler."""

    def __init__(self, answer: ASGIResponse) -> None:
        super().__init__(content=None)
        self._answer = answer

    def to_asgi_response(self, *args: Any, **options: Any) -> ASGIResponse:
        return self._answer


def _refusal(request: AnyRequest, error: Exception) -> ASGIResponse:
    action_id = getattr(request.state, "action_id", None)
    match error:
        case ClientGone():
            return ASGIResponse(status_code=CLIENT_GONE)
        case NotFoundException():
            return problem(NotFound("There is nothing at this path."))
        case MethodNotAllowedException():
            listed = (error.headers or {}).get("allow", "").split(", ")
            allowed = ", ".join(method for method in listed if method != "OPTIONS")
            return problem(MethodNotAllowed(f"This path has {allowed}."), headers={"Allow": allowed})
        case HTTPException() if error.status_code < 500:
            return problem(InvalidFields("The request's headers are not valid."))
        case SidecarError() if type(error) in PROBLEMS:
            return problem(error, action_id=action_id)
    _log.error("a request failed inside the sidecar", exc_info=error, extra={"action_id": action_id})
    return problem(Internal("The sidecar failed to handle this request; its log says why."), action_id=action_id)
